"""Plans for this machine: what is on it decides."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.build.tensorrt_files import tensorrt_engine
from tests.launch.container_engines import write_engine as write_container_engine
from tests.launch.samples import fake_plan
from tests.repository.samples import add_model
from trtllm_serve_cli.build import Machine
from trtllm_serve_cli.errors import BadInput, MissingPart, UnknownModel
from trtllm_serve_cli.launch import RunningServer, SlurmJob, plan_again, plan_for_this_machine
from trtllm_serve_cli.launch.machine import find_embedded_root
from trtllm_serve_cli.launch.state import ServerState
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository import ServingOptions, plan_repository, write_repository

NGC = "nvcr.io/nvidia/tritonserver"
needs_embedded = pytest.mark.skipif(
    find_embedded_root() is None, reason="needs the extra: embedded"
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "engines")


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that works, beside a docker that does not."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    write_container_engine(tmp_path / "bin", "docker", info="exit 1")
    return write_container_engine(tmp_path / "bin", "podman")


def test_plan_for_a_model_that_was_not_imported(home: Home) -> None:
    with pytest.raises(UnknownModel, match="No model 'nope' has been imported"):
        plan_for_this_machine(home, ["nope"], {})


def test_plan_for_this_machine_has_a_token_of_its_own(home: Home) -> None:
    folder = home.models / "m"
    folder.mkdir(parents=True)
    engine = {"kind": "openvino", "path": "/e", "source": "gguf:/m", "fingerprint": "f"}
    manifest = {"name": "m", "created_at": 0, "engine": engine, "models": ["m"]}
    (folder / "tllm.json").write_text(json.dumps(manifest))
    plans = [plan_for_this_machine(home, [], {}) for _ in range(2)]
    assert len({plan.endpoint.restricted_token for plan in plans}) == 2


def test_engine_of_two_ranks_is_planned_as_two_processes(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_repository("mine", tensorrt_engine(tmp_path), ServingOptions())
    write_repository(plan, home.models / "mine")
    for program in ("mpirun", "tritonserver"):
        path = tmp_path / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    made = plan_for_this_machine(home, ["mine"], {"mode": "mpi", "gpus": "0,1"})
    assert (made.argv[0], made.argv.count("-n")) == ("mpirun", 2)
    assert made.argv.count("--load-model=tensorrt_llm") == 1
    assert made.environ == {"CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(BadInput, match="engine needs 2 processes"):
        plan_for_this_machine(home, ["mine"], {})


def test_job_is_started_again_where_it_can_be_followed(home: Home) -> None:
    plan = dataclasses.replace(fake_plan(home.servers), argv=("sbatch", "/jobs/job.sbatch"))
    job = RunningServer(home.servers, plan, ServerState("ready", 0, 0.0), SlurmJob("12", "RUNNING"))
    with pytest.raises(BadInput) as raised:
        plan_again(home, job)
    assert str(raised.value) == (
        "Slurm job 12 cannot be started again from here.\n"
        "Why: it is a job of Slurm's; what it was submitted with stands in /jobs/job.sbatch\n"
        "Next: tllm stop -m m, and tllm deploy slurm -m m --submit …"
    )


def add_tensorrt_model(home: Home, folder: Path) -> None:
    plan = plan_repository("mine", tensorrt_engine(folder), ServingOptions())
    write_repository(plan, home.models / "mine")


@needs_embedded
def test_auto_is_a_container_where_the_triton_here_cannot(
    home: Home, tmp_path: Path, podman: Path
) -> None:
    add_tensorrt_model(home, tmp_path)
    write_container_engine(podman.parent, "docker")
    (podman.parent / "nvidia-container-runtime-hook").touch(0o755)
    made = plan_for_this_machine(home, [], {"mode": "auto"})
    assert (made.mode, made.container.image) == ("container", f"{NGC}:26.02-trtllm-python-py3")
    assert made.argv.count("mpirun") == 1
    assert made.reason == (
        "In a container, since by itself it cannot: The Triton in the package nvidia-pytriton "
        "cannot serve mine (the model needs Triton's backend tensorrtllm, which only containers "
        "have)"
    )
    assert made.reason in made.describe()


@needs_embedded
def test_auto_without_any_way_says_both_reasons(home: Home, tmp_path: Path, podman: Path) -> None:
    add_tensorrt_model(home, tmp_path)
    write_container_engine(podman.parent, "podman", info="exit 1")
    with pytest.raises(MissingPart, match="mine can be served neither by") as raised:
        plan_for_this_machine(home, [], {"mode": "auto"})
    assert "the model needs Triton's backend tensorrtllm" in raised.value.why
    assert "No program here runs containers" in raised.value.why


def test_auto_prefers_the_triton_here(home: Home, podman: Path) -> None:
    add_model(home, "m")
    made = plan_for_this_machine(home, [], {"mode": "auto", "image": "mine:1"})
    assert (made.mode, made.container, made.reason) == ("local", None, "")


def test_what_is_wrong_anywhere_is_said_once(home: Home, podman: Path) -> None:
    add_model(home, "m")
    with pytest.raises(BadInput, match=r"^The ports 1, 1, 2 are not three different ones"):
        ports = {"http_port": 1, "grpc_port": 1, "metrics_port": 2}
        plan_for_this_machine(home, [], {"mode": "auto", "image": "mine:1", **ports})


def test_engine_of_another_version_is_no_matter_in_a_container(
    home: Home, tmp_path: Path, podman: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tensorrt_model(home, tmp_path)
    write_container_engine(podman.parent, "docker")
    (podman.parent / "nvidia-container-runtime-hook").touch(0o755)
    monkeypatch.setattr(
        "trtllm_serve_cli.launch.plan_here.look_at_machine", lambda: Machine(tensorrt_llm="0.9.0")
    )
    with pytest.raises(BadInput, match="was built by another TensorRT-LLM"):
        plan_for_this_machine(home, [], {"mode": "mpi"})
    assert plan_for_this_machine(home, [], {"mode": "container"}).mode == "container"
