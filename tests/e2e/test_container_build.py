"""Builds in podman containers, with an image that contains fakes of TensorRT-LLM's programs."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.conftest import TLLM, Tllm
from tests.e2e.podman import (
    IMAGE,
    container_skip_reason,
    make_image,
    run_podman,
    skip_reason,
    use_own_store,
)
from tests.samples.checkpoints import hf_files, write_files
from tests.samples.tensorrt_engines import engine_config, write_tokenizer
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(skip_reason() != "", reason=skip_reason())

TOOLKIT = Path(__file__).parents[1] / "fakes" / "toolkit"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class ContainerBuilds(Tllm):
    """`tllm` with podman's test store, a docker on top of podman, and its own HF_HOME."""

    store: Mapping[str, str] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        return self.home.parent / "hf home" / "hub"

    @property
    def environ(self) -> dict[str, str]:
        inherited = super().environ
        programs = f"{self.home.parent / 'bin'}:{inherited['PATH']}"
        names = {"PATH": programs, "HF_HOME": str(self.cache.parent), "HF_TOKEN": "hf_secret"}
        return {**inherited, **self.store, **names}

    def words(self) -> tuple[str, ...]:
        source = f"local:{self.home.parent / 'check point'}"
        options = ("--mode=container", f"--image={IMAGE}", "--trtllm-version=0.18.0")
        return ("import", "-m", "llama", "-s", source, *options)

    def containers(self, shown: str = "{{.Names}}") -> list[str]:
        return run_podman("ps", "--all", f"--format={shown}", environ=self.store).stdout.split()

    def runs_of_the_converter(self) -> list[str]:
        return (self.cache / "conversions").read_text().splitlines()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Make a podman store that contains the image, and yield its environment."""
    root = tmp_path_factory.mktemp("podman")
    environ = use_own_store(root)
    config = engine_config("0.18.0")
    config["pretrained_config"]["mapping"] = {"world_size": 1, "tp_size": 1, "pp_size": 1}
    (root / "engine.json").write_text(json.dumps(config))
    added = {
        "app/engine.json": root / "engine.json",
        "app/examples/llama/convert_checkpoint.py": TOOLKIT / "convert_checkpoint.py",
        "usr/local/bin/trtllm-build": TOOLKIT / "trtllm-build",
    }
    make_image(root, environ, wheels=(), added=added)
    if why := container_skip_reason(environ):
        pytest.skip(f"podman cannot run containers here: {why}")
    yield environ
    run_podman("rmi", "--all", "--force", environ=environ).check_returncode()


@pytest.fixture
def tllm(tmp_path: Path, store: Mapping[str, str]) -> Iterator[ContainerBuilds]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").symlink_to(TOOLKIT / "docker")
    # tllm assumes that docker can access GPUs if this program exists.
    (tmp_path / "bin" / "nvidia-container-runtime-hook").symlink_to("/bin/true")
    write_tokenizer(write_files(tmp_path / "check point", hf_files(**LLAMA)))
    tllm = ContainerBuilds(tmp_path / "home", store)
    tllm.cache.mkdir(parents=True)
    yield tllm
    for name in tllm.containers():
        run_podman("rm", "--force", "--time=0", name, environ=store)


def test_model_is_imported_with_an_engine_that_is_built_in_a_container(
    tllm: ContainerBuilds,
) -> None:
    tllm.done(*tllm.words())
    engine = tllm.engine("llama")
    written = {path.name for path in engine.iterdir()}
    assert written == {"build.log", "config.json", "engine.json", "rank0.engine", "tokenizer"}
    assert {path.stat().st_uid for path in engine.iterdir()} == {engine.stat().st_uid}
    assert tllm.runs_of_the_converter() == ["hf_secret"]
    commands = (engine / "engine.json").read_text() + (engine / "build.log").read_text()
    assert ("--env=HF_TOKEN" in commands, "hf_secret" in commands) == (True, False)
    assert tllm.containers() == []
    local = ("import", *tllm.words()[1:5], "--engine=tensorrt", "--trtllm-version=0.18.0")
    assert "Using the existing engine" in tllm.done(*local, "--dry-run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_build_stops_its_container_and_resumes(
    tllm: ContainerBuilds, number: signal.Signals
) -> None:
    (tllm.cache / "hold").touch()
    process = subprocess.Popen((TLLM, *tllm.words()), env=tllm.environ, stderr=subprocess.PIPE)
    wait_until((tllm.cache / "holding").exists)
    assert len(tllm.containers()) == 1
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert b"Run the same command to resume" in errors
    assert tllm.containers() == []
    (tllm.cache / "hold").unlink()
    resumed = tllm(*tllm.words())
    assert resumed.returncode == 0, resumed.stderr
    assert "Convert the checkpoint for TensorRT-LLM: finished in a previous run." in resumed.stderr
    assert len(tllm.runs_of_the_converter()) == 1


def test_container_of_a_killed_build_is_stopped_by_the_next_build(tllm: ContainerBuilds) -> None:
    (tllm.cache / "hold").touch()
    process = subprocess.Popen((TLLM, *tllm.words()), env=tllm.environ, stderr=subprocess.DEVNULL)
    wait_until((tllm.cache / "holding").exists)
    process.kill()
    process.wait()
    orphan = tllm.containers("{{.ID}}")
    resumed = subprocess.Popen((TLLM, *tllm.words()), env=tllm.environ, stderr=subprocess.DEVNULL)
    wait_until(lambda: set(tllm.containers("{{.ID}}")) - set(orphan))
    assert len(tllm.containers()) == 1
    (tllm.cache / "hold").unlink()
    assert (resumed.wait(timeout=120), tllm.containers()) == (0, [])
    assert len(tllm.runs_of_the_converter()) == 1


def test_failure_in_the_container_is_explained(tllm: ContainerBuilds) -> None:
    (tllm.cache / "fail").touch()
    result = tllm(*tllm.words())
    assert (result.returncode, "Step failed: Build the engine." in result.stderr) == (3, True)
    assert "the GPU's memory is full" in " ".join(result.stderr.split())
    assert tllm.containers() == []


def test_image_without_the_scripts_is_explained(tllm: ContainerBuilds) -> None:
    (tllm.home.parent / "empty").mkdir()
    result = tllm(*tllm.words(), f"--examples={tllm.home.parent / 'empty'}")
    words = " ".join(result.stderr.split())
    assert (result.returncode, "then add --examples TensorRT-LLM/examples" in words) == (3, True)
