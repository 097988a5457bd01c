"""Launch plans that depend on the state of this machine."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.fakes.container_engines import write_engine as write_container_engine
from tests.samples.repositories import add_model, copy_upstream
from tests.samples.tensorrt_engines import (
    engine_config,
    tensorrt_engine,
    write_engine,
    write_tokenizer,
)
from trtllm_serve_cli.engine_kinds.machine import Machine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput, MissingPart, RepositoryError, UnknownModel
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.triton.triton_install import find_embedded_root
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.repository.settings.settings import apply_changes, plan_changes, write_changes

NGC = "nvcr.io/nvidia/tritonserver"
needs_embedded = pytest.mark.skipif(
    find_embedded_root() is None, reason="needs the extra: embedded"
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "engines")


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a podman that works and a docker that does not."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    write_container_engine(tmp_path / "bin", "docker", info="exit 1")
    return write_container_engine(tmp_path / "bin", "podman")


def test_plan_for_a_model_that_was_not_imported(home: Home) -> None:
    with pytest.raises(UnknownModel, match="No model named 'nope' has been imported"):
        plan_for_this_machine(home, ["nope"], {})


def test_every_plan_has_a_new_token(home: Home) -> None:
    folder = home.models / "m"
    folder.mkdir(parents=True)
    engine = {"kind": "openvino", "path": "/e", "source": "gguf:/m", "fingerprint": "f"}
    manifest = {"name": "m", "created_at": 0, "engine": engine, "models": ["m"]}
    (folder / "tllm.json").write_text(json.dumps(manifest))
    plans = [plan_for_this_machine(home, [], {}) for _ in range(2)]
    assert len({plan.endpoint.restricted_token for plan in plans}) == 2


def test_folder_that_triton_cannot_use_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "with space", tmp_path / "engines")
    add_model(home, "m")
    with pytest.raises(BadInput, match=r"Triton cannot use the folder .*/with space/servers"):
        plan_for_this_machine(home, [], {})


def test_engine_of_two_ranks_is_planned_as_two_processes(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_repository("mine", tensorrt_engine(tmp_path), ServingOptions())
    write_repository(plan, home.models / "mine")
    install_programs(tmp_path, monkeypatch)
    made = plan_for_this_machine(home, ["mine"], {"mode": "mpi", "gpus": "0,1"})
    assert (made.argv[0], made.argv.count("-n")) == ("mpirun", 2)
    assert made.argv.count("--load-model=tensorrt_llm") == 1
    assert made.environ == {"CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(BadInput, match="engine needs 2 processes"):
        plan_for_this_machine(home, ["mine"], {})


def test_gpus_that_the_machine_does_not_have_are_refused(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of_upstream(tmp_path, 1)
    install_programs(tmp_path, monkeypatch)
    with pytest.raises(MissingPart, match="does not have GPU 99"):
        plan_for_this_machine(home, [], {"gpus": "99"}, repositories=[copy])
    plan = plan_for_this_machine(home, [], {"gpus": "99"}, repositories=[copy], is_dry_run=True)
    assert any("does not have GPU 99" in line for line in plan.missing)


def test_engine_with_ranks_and_its_draft_model_need_an_orchestrator(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = {"plugin_config": {"use_paged_context_fmha": True}, "max_draft_len": 5}
    engine = tensorrt_engine(tmp_path, **build)
    draft = write_engine(tmp_path / "draft", engine_config(**build))
    parameters = {
        "tokenizer_dir": str(tmp_path / "tokenizer"), "draft_engine_dir": str(draft),
        "draft_gpu_device_ids": "2,3",
    }  # fmt: skip
    plan = plan_repository("mine", engine, ServingOptions(parameters=parameters))
    write_repository(plan, home.models / "mine")
    install_programs(tmp_path, monkeypatch)
    made = plan_for_this_machine(home, ["mine"], {"mode": "mpi", "gpus": "0,1,2,3"})
    assert "tensorrt_llm_draft" in made.loading
    assert made.environ["TRTLLM_ORCHESTRATOR"] == "1"
    with pytest.raises(BadInput, match="tensorrt_llm_draft"):
        plan_for_this_machine(home, ["mine"], {"mode": "mpi", "gpus": "0,1"})


def copy_of_upstream(folder: Path, num_ranks: int, **overrides: str) -> Path:
    """Write upstream's repository with its values and an engine, without a manifest of tllm."""
    config = engine_config()
    config["pretrained_config"]["mapping"] = {"world_size": num_ranks}
    engine = write_engine(folder / "engine", config, num_ranks)
    values = {
        "triton_max_batch_size": "8", "preprocessing_instance_count": "1", "decoupled_mode": "true",
        "triton_backend": "tensorrtllm", "batching_strategy": "inflight_fused_batching",
        "engine_dir": str(engine), "tokenizer_dir": str(write_tokenizer(folder / "tokenizer")),
    }  # fmt: skip
    copy = open_repository(copy_upstream(folder / "inflight_batcher_llm"))
    values |= overrides
    write_changes(copy, apply_changes(copy, plan_changes(copy, values)), values)
    return copy.path


def install_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put empty programs `tritonserver` and `mpirun` on PATH."""
    for program in ("mpirun", "tritonserver"):
        path = folder / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))


def test_upstream_repository_is_served_unchanged(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of_upstream(tmp_path, 1)
    install_programs(tmp_path, monkeypatch)
    made = plan_for_this_machine(home, [], {}, repositories=[copy])
    assert made.argv[0].endswith("tritonserver")
    assert f"--model-repository={copy}" in made.argv
    assert (made.models, made.text_models) == (("inflight_batcher_llm",), ("ensemble",))
    assert sorted(made.loading) == sorted(path.parent.name for path in copy.glob("*/config.pbtxt"))
    assert made.request.repositories == (copy,)


def test_upstream_repository_has_the_ranks_of_its_engine(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of_upstream(tmp_path, 2)
    install_programs(tmp_path, monkeypatch)
    made = plan_for_this_machine(
        home, [], {"mode": "mpi", "gpus": "0,1", "world_size": 2}, repositories=[copy]
    )
    assert (made.argv[0], made.argv.count("-n")) == ("mpirun", 2)
    with pytest.raises(BadInput, match="engine needs 2 processes"):
        plan_for_this_machine(home, [], {}, repositories=[copy])


@needs_embedded
def test_upstream_repository_is_served_in_a_container(
    home: Home, tmp_path: Path, podman: Path
) -> None:
    copy = copy_of_upstream(tmp_path, 1)
    write_container_engine(podman.parent, "docker")
    (podman.parent / "nvidia-container-runtime-hook").touch(0o755)
    made = plan_for_this_machine(home, [], {"mode": "auto"}, repositories=[copy])
    assert (made.mode, made.container.image) == ("container", f"{NGC}:26.02-trtllm-python-py3")
    mounted = " ".join(made.argv)
    assert all(str(folder) in mounted for folder in (copy, tmp_path / "engine"))


def test_unfilled_upstream_repository_is_rejected(home: Home, tmp_path: Path) -> None:
    copy = copy_upstream(tmp_path / "copy")
    with pytest.raises(RepositoryError, match="are not filled in") as raised:
        plan_for_this_machine(home, [], {}, repositories=[copy])
    assert raised.value.next_step == (
        f"run `tllm validate --repo {copy}` to list the variables to set"
    )
    copy = copy_of_upstream(tmp_path / "b", 1)
    config = copy / "tensorrt_llm" / "config.pbtxt"
    text = config.read_text()
    for value in ("tensorrtllm", str(tmp_path / "b" / "engine")):
        config.write_text(text.replace(f'"{value}"', '"${left}"'))
        with pytest.raises(RepositoryError, match="are not filled in"):
            plan_for_this_machine(home, [], {}, repositories=[copy])


def test_unfilled_variable_that_upstreams_model_needs_is_rejected(
    home: Home, tmp_path: Path
) -> None:
    copy = copy_of_upstream(tmp_path, 1)
    config = copy / "preprocessing" / "config.pbtxt"
    with config.open("a") as stream:
        stream.write(
            'parameters { key: "tokenizer_type" value { string_value: "${tokenizer_type}" } }\n'
        )
    with pytest.raises(RepositoryError, match="cannot be loaded") as raised:
        plan_for_this_machine(home, [], {}, repositories=[copy])
    assert raised.value.why == "preprocessing/config.pbtxt:14: ${tokenizer_type} is not filled in"
    assert raised.value.next_step == (
        f"run `tllm set --repo {copy} tokenizer_type=auto`, or run `tllm validate --repo {copy}` "
        "to list all errors"
    )


def test_engine_of_another_version_is_rejected(home: Home, tmp_path: Path) -> None:
    engine = tensorrt_engine(tmp_path, "0.9.0")
    write_repository(plan_repository("mine", engine, ServingOptions()), home.models / "mine")
    tensorrt_engine(tmp_path, "1.1.0")
    with pytest.raises(RepositoryError, match="cannot be loaded") as raised:
        plan_for_this_machine(home, ["mine"], {})
    assert raised.value.why.endswith(
        "the model's tensors match TensorRT-LLM 0.9.0, but the engine was built with 1.1.0, and "
        "2 more"
    )


def test_other_repository_error_names_the_command_that_serves_it(
    home: Home, tmp_path: Path
) -> None:
    copy = copy_of_upstream(tmp_path, 1, triton_backend="python")
    with pytest.raises(RepositoryError, match="neither a tllm model repository nor") as raised:
        plan_for_this_machine(home, [], {}, repositories=[copy])
    assert raised.value.next_step.endswith(f" run `tritonserver --model-repository={copy}`")


def add_tensorrt_model(home: Home, folder: Path) -> None:
    plan = plan_repository("mine", tensorrt_engine(folder), ServingOptions())
    write_repository(plan, home.models / "mine")


@needs_embedded
def test_auto_uses_a_container_if_the_local_triton_cannot_serve(
    home: Home, tmp_path: Path, podman: Path
) -> None:
    add_tensorrt_model(home, tmp_path)
    write_container_engine(podman.parent, "docker")
    (podman.parent / "nvidia-container-runtime-hook").touch(0o755)
    made = plan_for_this_machine(home, [], {"mode": "auto"})
    assert (made.mode, made.container.image) == ("container", f"{NGC}:26.02-trtllm-python-py3")
    assert made.argv.count("mpirun") == 1
    assert made.reason == (
        "Using a container because local mode cannot be used: The Triton installation in the "
        "nvidia-pytriton package cannot serve mine (the model needs Triton's tensorrtllm backend, "
        "which only container images include)"
    )
    assert made.reason in made.describe()


@needs_embedded
def test_auto_reports_both_reasons(home: Home, tmp_path: Path, podman: Path) -> None:
    add_tensorrt_model(home, tmp_path)
    write_container_engine(podman.parent, "podman", info="exit 1")
    with pytest.raises(
        MissingPart, match="Neither the local Triton nor a container can serve mine"
    ) as raised:
        plan_for_this_machine(home, [], {"mode": "auto"})
    assert "the model needs Triton's tensorrtllm backend" in raised.value.why
    assert "No container engine works on this machine" in raised.value.why


def test_auto_prefers_the_local_triton(home: Home, podman: Path) -> None:
    add_model(home, "m")
    made = plan_for_this_machine(home, [], {"mode": "auto", "image": "mine:1"})
    assert (made.mode, made.container, made.reason) == ("local", None, "")


def test_auto_reports_an_error_of_both_modes_once(home: Home, podman: Path) -> None:
    add_model(home, "m")
    with pytest.raises(BadInput, match=r"^The ports 1, 1, 2, 1001 are not distinct"):
        ports = {"http_port": 1, "grpc_port": 1, "metrics_port": 2}
        plan_for_this_machine(home, [], {"mode": "auto", "image": "mine:1", **ports})


def test_engine_version_is_not_checked_in_a_container(
    home: Home, tmp_path: Path, podman: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tensorrt_model(home, tmp_path)
    write_container_engine(podman.parent, "docker")
    (podman.parent / "nvidia-container-runtime-hook").touch(0o755)
    monkeypatch.setattr(
        "trtllm_serve_cli.launch.planning.local_plan.detect_machine",
        lambda: Machine(versions={"tensorrt_llm": "0.9.0"}),
    )
    with pytest.raises(BadInput, match="was built with another TensorRT-LLM version"):
        plan_for_this_machine(home, [], {"mode": "mpi"})
    assert plan_for_this_machine(home, [], {"mode": "container"}).mode == "container"


@pytest.mark.parametrize(
    ("mode", "num_ranks", "program", "missing"),
    [
        ("auto", 1, "tritonserver", "Triton"),
        ("local", 1, "tritonserver", "Triton"),
        ("mpi", 2, "mpirun", "mpirun is not installed"),
        ("container", 1, "docker", "No container engine works"),
    ],
)
def test_dry_run_lists_the_missing_programs(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    mode: str, num_ranks: int, program: str, missing: str,
) -> None:  # fmt: skip
    copy = copy_of_upstream(tmp_path, num_ranks)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    options = {"mode": mode, "world_size": num_ranks} if num_ranks > 1 else {"mode": mode}
    with pytest.raises(MissingPart):
        plan_for_this_machine(home, [], options, repositories=[copy])
    made = plan_for_this_machine(home, [], options, repositories=[copy], is_dry_run=True)
    assert made.argv[0].endswith(program)
    assert missing in " ".join(made.missing)
    assert "Missing on this machine: " in made.describe()


def test_dry_run_without_missing_programs_equals_the_plan(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of_upstream(tmp_path, 1)
    install_programs(tmp_path, monkeypatch)
    made, dry = (
        plan_for_this_machine(home, [], {}, repositories=[copy], is_dry_run=each)
        for each in (False, True)
    )
    assert dry.missing == ()
    commands = [shlex.join(each.hide_token(each.argv)) for each in (made, dry)]
    assert commands[0] == commands[1].replace(dry.region_prefix, made.region_prefix)
    assert dry.region_prefix != made.region_prefix
