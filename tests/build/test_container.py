"""Builds in a container, with a fake docker that runs the commands on this machine."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.fakes.container_engines import calls_of, write_engine
from tests.samples import configs
from tests.samples.builds import build_plan
from tests.samples.checkpoints import hf_files, write_files
from tests.samples.tensorrt_engines import engine_config
from trtllm_serve_cli.build.build_plan import BuildPlan
from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.container import ContainerOptions, find_container_tools, plan_container
from trtllm_serve_cli.build.partial_build import path_of_work
from trtllm_serve_cli.build.run import build_engine
from trtllm_serve_cli.engine_kinds.dispatch import find_tools
from trtllm_serve_cli.errors import BadInput, BuildFailed

# The version in the image `img`.
VERSION = "0.17.0"
# Fakes of TensorRT-LLM's programs, which write the files that tllm expects.
CONVERTER = """\
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--output_dir") + 1])
out.mkdir(parents=True, exist_ok=True)
(out / "config.json").write_text("{}")
(out / "rank0.safetensors").touch()
"""
BUILDER = f"""\
#!{sys.executable}
import json, pathlib, sys
if pathlib.Path(__file__).with_name("broken").exists():
    sys.exit("no CUDA-capable device is detected")
out = pathlib.Path(sys.argv[sys.argv.index("--output_dir") + 1])
config = {engine_config(VERSION)!r}
config["pretrained_config"]["mapping"]["world_size"] = 1
(out / "config.json").write_text(json.dumps(config))
(out / "rank0.engine").touch()
"""


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a docker with a GPU toolkit and TensorRT-LLM's programs on PATH."""
    folder = tmp_path / "bin"
    program = write_engine(folder, "docker", image="exit 0")
    (folder / "nvidia-container-runtime-hook").touch(mode=0o755)
    (folder / "trtllm-build").write_text(BUILDER)
    (folder / "trtllm-build").chmod(0o755)
    script = tmp_path / "examples" / "llama" / "convert_checkpoint.py"
    script.parent.mkdir(parents=True)
    script.write_text(CONVERTER)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN", "secret")
    return program


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    """Return an import in the container of the image `img`."""
    files = hf_files(**configs.LLAMA_2_7B)
    source = write_files(tmp_path / "checkpoint", files)
    return (
        "import", "-m", "mine", "-s", f"local:{source}", "--engine", "tensorrt",
        "--trtllm-version", VERSION, "--mode", "container", "--image", "img",
        "--examples", str(tmp_path / "examples"),
    )  # fmt: skip


def test_steps_run_in_the_container(
    tllm: Tllm, docker: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    code, out, err = tllm(*words, "--json")
    assert code == 0, err
    assert (Path(json.loads(out)["engine"]) / "rank0.engine").exists()
    runs = calls_of(docker, "run")
    assert [("convert_checkpoint.py" in run, "trtllm-build" in run) for run in runs] == [
        (True, False),
        (False, True),
    ]
    for run in runs:
        assert f"--volume={tmp_path / 'checkpoint'}:{tmp_path / 'checkpoint'}:ro" in run
        assert f"--volume={tmp_path / 'examples'}:{tmp_path / 'examples'}:ro" in run
        assert "--gpus=all" in run
        # The container engine reads the token from its environment.
        assert "--env=HF_TOKEN " in run
        assert "secret" not in run


def test_engine_of_a_local_build_is_reused(
    tllm: Tllm, docker: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    local = [word for word in words if word not in ("--mode", "container", "--image", "img")]
    del local[local.index("--examples") :]
    plans = []
    for arguments in (words, local):
        code, out, err = tllm(*arguments, "--dry-run", "--json")
        assert code == 0, err
        plans.append(json.loads(out)["build"])
    assert plans[0]["fingerprint"] == plans[1]["fingerprint"]
    assert plans[0]["steps"][0]["command"][0] == "docker"
    assert plans[1]["steps"][0]["command"][0] == "python3"


def test_failed_build_resumes(
    tllm: Tllm, docker: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    broken = docker.with_name("broken")
    broken.touch()
    code, _, err = tllm(*words)
    assert (code, "Step failed: Build the engine." in err) == (3, True)
    broken.unlink()
    assert tllm(*words)[0] == 0
    assert sum("convert_checkpoint.py" in run for run in calls_of(docker, "run")) == 1


def test_missing_image_is_pulled(
    tllm: Tllm, docker: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    image, pull = 'test -e "$0.pulled"', 'echo Pulling; touch "$0.pulled"'
    write_engine(docker.parent, "docker", image=image, pull=pull)
    code, _, err = tllm(*words)
    assert code == 0, err
    assert "Fetching img" in err
    assert calls_of(docker, "pull") == ["pull img"]


def test_dry_run_works_without_a_container_engine(
    tllm: Tllm, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    (tmp_path / "examples").mkdir()
    code, out, err = tllm(*words, "--dry-run")
    assert code == 0, err
    assert "Missing on this machine: No container engine works" in out
    assert "docker run --rm" in out
    code, out, _ = tllm(*words, "--dry-run", "--json")
    missing = "No container engine works on this machine."
    assert (code, json.loads(out)["missing"]) == (0, missing)
    code, _, err = tllm(*words)
    assert (code, "No container engine works" in err) == (3, True)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--image", "img"), "--image applies only to builds in a container"),
        (
            ("--mode", "container", "--engine", "openvino"),
            "tllm does not build openvino engines in a container",
        ),
        (("--mode", "container"), "No TensorRT-LLM version was specified for the build"),
        (
            ("--mode", "container", "--trtllm-version", "0.11.0"),
            "does not contain TensorRT-LLM's example scripts",
        ),
        (
            ("--mode", "container", "--trtllm-version", "0.11.0", "--examples", "/no/such"),
            "/no/such is not a folder",
        ),
    ],
)
def test_contradicting_options_are_refused(tllm: Tllm, options: tuple[str, ...], what: str) -> None:
    code, _, err = tllm("import", "-m", "llama-2-7b", "--engine", "tensorrt", *options)
    assert (code, what in err) == (3, True), err


@pytest.fixture
def working(docker: Path, tmp_path: Path) -> BuildPlan:
    """Return a plan with one step, which runs for minutes in a container."""
    tools = find_container_tools(ContainerOptions(), "img", tmp_path / "examples")
    step = BuildStep("Make it", ("sh", "-c", "echo working; sleep 600"))
    plan = build_plan(tmp_path / "engines" / "e", step)
    return dataclasses.replace(plan, container=plan_container(tools, [], plan.engine_dir))


def name_for(plan: BuildPlan) -> str:
    assert plan.container is not None
    return plan.container.named_for(path_of_work(plan.engine_dir)).name


def test_interrupt_kills_the_container(docker: Path, working: BuildPlan) -> None:
    def interrupt(line: str) -> None:
        if line == "working":
            docker.with_name("docker.calls").unlink()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_engine(working, force=False, notify=print, on_line=interrupt)
    assert calls_of(docker, "rm") == [f"rm --force {name_for(working)}"]


def test_container_of_a_killed_build_is_removed_first(docker: Path, working: BuildPlan) -> None:
    """The next build's container has the same name and writes to the same folder."""
    write_engine(docker.parent, "docker", image="exit 0", run="exit 1")
    with pytest.raises(BuildFailed):
        build_engine(working, force=False, notify=print)
    calls = docker.with_name("docker.calls").read_text().splitlines()
    removal = calls.index(f"rm --force {name_for(working)}")
    assert removal < [call.split()[0] for call in calls].index("run")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("exit 137", "the process was killed, probably because the machine ran out of memory"),
        (
            'echo \'docker: Error response from daemon: could not select device driver "" with '
            "capabilities: [[gpu]].' >&2; exit 125",
            "the container cannot access the GPU: docker: Error response from daemon: could not "
            'select device driver "" with capabilities: [[gpu]].',
        ),
        ("echo gone >&2; exit 125", "the step exited with code 125; the last lines of the log are"),
    ],
    ids=["killed", "gpu", "other"],
)
def test_failure_of_the_container_is_explained(
    docker: Path, working: BuildPlan, answer: str, why: str
) -> None:
    write_engine(docker.parent, "docker", image="exit 0", run=answer)
    with pytest.raises(BuildFailed) as raised:
        build_engine(working, force=False, notify=print)
    assert raised.value.why.startswith(why)


def test_failed_pull_comes_before_the_download_and_leaves_nothing(
    tllm: Tllm, docker: Path, words: tuple[str, ...], home_folder: Path
) -> None:
    write_engine(docker.parent, "docker", image="exit 1", pull="echo unauthorized; exit 1")
    code, _, err = tllm(*words)
    assert (code, "The image img could not be pulled." in err) == (3, True)
    assert not (home_folder / "engines").exists()


def test_existing_engine_needs_no_container_engine(
    tllm: Tllm,
    docker: Path,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tllm(*words)[0] == 0
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    code, _, err = tllm(*words)
    assert (code, "Using the existing engine" in err) == (0, True)
    code, out, _ = tllm(*words, "--dry-run", "--json")
    assert (code, json.loads(out)["missing"]) == (0, None)


def test_container_mode_selects_tensorrt(tllm: Tllm, docker: Path, words: tuple[str, ...]) -> None:
    without = [word for word in words if word not in ("--engine", "tensorrt")]
    code, out, err = tllm(*without, "--dry-run", "--json")
    assert code == 0, err
    assert json.loads(out)["engine_kind"] == "tensorrt"


def test_folder_with_a_colon_cannot_be_mounted(docker: Path, tmp_path: Path) -> None:
    options = ContainerOptions(image="img", examples=tmp_path / "examples")
    tools = find_container_tools(options, "img", tmp_path / "examples")
    with pytest.raises(BadInput, match="cannot be mounted"):
        plan_container(tools, [Path("/a:b")], tmp_path)


def test_version_is_that_of_the_image(docker: Path) -> None:
    image = "nvcr.io/nvidia/tritonserver:25.03-trtllm-python-py3"
    tools = find_tools(None, ContainerOptions(image=image))
    assert tools.container is not None
    assert (tools.trtllm_version, str(tools.container.examples)) == ("0.18.0", "/app/examples")
    release = find_tools(None, ContainerOptions(image="nvcr.io/nvidia/tensorrt-llm/release:1.0.0"))
    assert release.container is not None
    assert str(release.container.examples) == "/app/tensorrt_llm/examples"
    with pytest.raises(BadInput, match=r"does not contain TensorRT-LLM 0\.9\.0"):
        find_tools("0.9.0", ContainerOptions(image=image))
