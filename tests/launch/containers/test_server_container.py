"""Plans of servers in containers, also compared with upstream's documented command."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples.lora_adapters import write_converted
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.containers.container import Container, ContainerHost, lower_limit
from trtllm_serve_cli.errors import BadInput, MissingPart
from trtllm_serve_cli.launch.containers.deployment import Deployable
from trtllm_serve_cli.launch.containers.server_container import (
    IN_IMAGE,
    name_container,
    plan_container,
)
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.planning.server_plan import plan_launch
from trtllm_serve_cli.repository.model.instances import EngineInstances
from trtllm_serve_cli.repository.model.store import ImportedModel
from trtllm_serve_cli.repository.planning.placed_model import PlacedModel

NGC = "nvcr.io/nvidia/tritonserver:24.07-trtllm-python-py3"
# README.md of triton-inference-server/tensorrtllm_backend: the container of release 24.07 for
# LLaMa, in which Triton is then started.
DOCUMENTED = f"""
docker run --rm -it --net host --shm-size=2g --ulimit memlock=-1 --ulimit stack=67108864
  --gpus all -v /models/llama:/models/llama -v /engines/llama:/engines/llama {NGC}
"""
DOCKER = ContainerHost("docker", "27.1.1", has_gpu_toolkit=True)
PODMAN = ContainerHost("podman", "5.2.0", has_gpu_toolkit=True)
LIMITS = {"nofile": 20000, "nproc": 32768, "memlock": 8388608, "stack": -1}
LLAMA = Deployable(
    name="llama",
    text_model="llama",
    kind="tensorrt",
    models=("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "llama"),
    repository=Path("/models/llama"),
    folders=(Path("/models/llama"), Path("/engines/llama")),
    num_gpus=1,
    num_ranks=1,
    image=NGC,
)
ON_CPU = dataclasses.replace(LLAMA, name="mine", kind="openvino", num_gpus=0, image=None)
IMPORTED = ImportedModel(
    name="llama",
    path=Path("/models/llama"),
    layout="inflight",
    engine_kind="tensorrt",
    engine_path=Path("/engines/llama"),
    source="engine:/engines/llama",
    fingerprint="f1",
    created_at=0,
    models=LLAMA.models,
)


def plan(
    host: ContainerHost = DOCKER,
    model: Deployable = LLAMA,
    *,
    image: str | None = None,
    gpus: str | None = None,
    ranks: int = 1,
    combined: tuple[PlacedModel, ...] = (),
    **options: Any,
) -> LaunchPlan:
    setup = plan_container([model], host, image=image, gpus=tuple(gpus.split(",")) if gpus else ())
    engine = EngineInstances(model="tensorrt_llm", world_size=ranks)
    return plan_launch(
        [IMPORTED],
        IN_IMAGE,
        LaunchOptions(**{"mode": "container", "gpus": gpus, "openai": False, **options}),
        servers=Path("/servers"),
        token="secret",
        combined=combined,
        engines=[engine],
        has_gpu=bool(setup.gpus),
        setup=setup,
    )


def options_of(plan: LaunchPlan) -> list[str]:
    """Return the arguments before the image."""
    assert plan.container is not None
    return list(plan.argv[2 : plan.argv.index(plan.container.image)])


def test_docker_with_gpus_compared_whole() -> None:
    name = name_container(Path("/servers/8000"))
    assert plan() == LaunchPlan(
        argv=(
            "docker",
            "run",
            "--rm",
            f"--name={name}",
            "--pull=never",
            "--log-driver=none",
            "--net=host",
            "--shm-size=2g",
            "--ulimit=memlock=-1",
            "--ulimit=stack=67108864",
            "--gpus=all",
            "--env=OPENBLAS_NUM_THREADS=1",
            "--env=TLLM_DRAINING=/servers/8000/draining",
            "--volume=/models/llama:/models/llama:ro",
            "--volume=/engines/llama:/engines/llama:ro",
            "--volume=/servers/8000/draining:/servers/8000/draining:ro",
            NGC,
            "tritonserver",
            "--model-repository=/models/llama",
            "--model-control-mode=none",
            "--model-load-thread-count=5",
            "--exit-timeout-secs=86400",
            "--http-address=127.0.0.1",
            "--http-port=8000",
            "--grpc-address=127.0.0.1",
            "--grpc-port=8001",
            "--metrics-address=127.0.0.1",
            "--metrics-port=8002",
            "--http-restricted-api=shared-memory,model-repository,trace,logging:tllm-token=secret",
            "--grpc-restricted-protocol="
            "shared-memory,model-repository,trace,logging:tllm-token=secret",
            "--allow-sagemaker=false",
            "--allow-vertex-ai=false",
            "--allow-gpu-metrics=true",
            "--log-verbose=0",
            "--disable-auto-complete-config",
            "--backend-config=python,shm-region-prefix-name=tllm-8000-2bb80d53-",
        ),
        environ={},
        directory=Path("/servers/8000"),
        repository=Path("/models/llama"),
        models=("llama",),
        text_models=("llama",),
        loading=IMPORTED.models,
        endpoint=Endpoint("127.0.0.1:8001", "127.0.0.1:8000", "127.0.0.1:8002", "secret"),
        mode="container",
        container=Container("docker", NGC, name),
    )


def test_command_has_every_documented_option_but_the_terminal() -> None:
    """The additional options are for a server without a terminal and with read-only folders."""
    documented, ours = parse_docker_run(shlex.split(DOCUMENTED)), parse_docker_run(plan().argv)
    assert documented - ours == {
        ("-it", ""),
        ("--volume", "/models/llama:/models/llama"),
        ("--volume", "/engines/llama:/engines/llama"),
    }
    assert ours - documented == {
        ("--name", name_container(Path("/servers/8000"))),
        ("--pull", "never"),
        ("--log-driver", "none"),
        ("--volume", "/models/llama:/models/llama:ro"),
        ("--volume", "/engines/llama:/engines/llama:ro"),
        ("--env", "OPENBLAS_NUM_THREADS=1"),
        # The folder with the markers of models that reject new requests.
        ("--env", "TLLM_DRAINING=/servers/8000/draining"),
        ("--volume", "/servers/8000/draining:/servers/8000/draining:ro"),
    }


def parse_docker_run(words: list[str] | tuple[str, ...]) -> set[tuple[str, str]]:
    """Return the options with their values, in either notation, and the image."""
    options, rest = set(), list(words[2 : words.index(NGC)])
    while rest:
        name, is_joined, value = rest.pop(0).partition("=")
        if not is_joined and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        options.add(({"-v": "--volume"}.get(name, name), value))
    return options | {("image", NGC)}


def test_plan_survives_its_file() -> None:
    assert LaunchPlan.from_json(plan().to_json()) == plan()


def test_podman_uses_cdi_and_permitted_limits() -> None:
    host = dataclasses.replace(PODMAN, hard_limits=LIMITS)
    assert options_of(plan(host))[6:12] == [
        "--ulimit=memlock=8388608:8388608",
        "--ulimit=stack=67108864:67108864",
        "--ulimit=nofile=20000:20000",
        "--ulimit=nproc=32768:32768",
        "--device=nvidia.com/gpu=all",
        "--security-opt=label=disable",
    ]


def test_podman_with_cap_sys_resource_gets_the_documented_limits() -> None:
    ulimits = [word for word in options_of(plan(PODMAN)) if word.startswith("--ulimit")]
    assert ulimits == ["--ulimit=memlock=-1", "--ulimit=stack=67108864"]


@given(*[st.integers(-1, 1 << 40)] * 2)
def test_lower_limit_is_within_both(one: int, other: int) -> None:
    lower = lower_limit(one, other)
    assert lower in (one, other)
    assert all(limit == -1 or -1 < lower <= limit for limit in (one, other))


@pytest.mark.parametrize(
    ("host", "gpus"),
    [
        (DOCKER, ['--gpus="device=0,GPU-1a"']),
        (PODMAN, ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=GPU-1a"]),
    ],
    ids=["docker", "podman"],
)
def test_container_has_only_the_chosen_gpus(host: ContainerHost, gpus: list[str]) -> None:
    made = plan(host, gpus="0,GPU-1a")
    assert [word for word in options_of(made) if "gpu" in word] == gpus
    assert not any("CUDA_VISIBLE_DEVICES" in word for word in (*made.argv, *made.environ))


def test_cpu_model_requests_no_gpu() -> None:
    host = dataclasses.replace(DOCKER, has_gpu_toolkit=False)
    made = plan(host, ON_CPU, image="mine:1")
    assert not any("gpus" in word for word in options_of(made))
    assert {"--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"} <= set(made.argv)


def test_docker_runs_as_the_user_with_a_home() -> None:
    made = plan(dataclasses.replace(DOCKER, runs_as="1000:1000"))
    assert options_of(made)[-8:-5] == ["--user=1000:1000", "--env=HOME=/tmp", "--env=USER=tllm"]


def test_ranks_are_started_by_the_mpirun_of_the_image() -> None:
    made = plan(model=dataclasses.replace(LLAMA, num_gpus=2, num_ranks=2), ranks=2)
    inside = made.argv[made.argv.index(NGC) + 1 :]
    assert inside[:6] == ("mpirun", "--bind-to", "none", "-n", "1", "tritonserver")
    assert (inside.count("tritonserver"), made.runs_mpirun) == (2, True)


def test_combined_repository_is_mounted() -> None:
    placed = (PlacedModel("llama", Path("/models/llama/llama")),)
    volume = "--volume=/servers/8000/models:/servers/8000/models:ro"
    assert volume in options_of(plan(combined=placed))


def test_nested_folders_are_mounted_once() -> None:
    folders = (Path("/a/b"), Path("/a"), Path("/ab"), Path("/a"))
    setup = plan_container(
        [dataclasses.replace(LLAMA, folders=folders)], DOCKER, image=None, gpus=()
    )
    assert setup.folders == (Path("/a"), Path("/ab"))


def test_container_names_differ_between_homes() -> None:
    names = {name_container(Path(home) / "servers" / "8000") for home in ("/a", "/b")}
    assert len(names) == 2
    assert all(name.startswith("tllm-8000-") for name in names)


def test_models_of_two_images_cannot_be_served_together() -> None:
    other = dataclasses.replace(LLAMA, name="old", image=NGC.replace("24.07", "24.06"))
    with pytest.raises(BadInput, match="llama and old cannot be served in one container"):
        plan_container([LLAMA, other], DOCKER, image=None, gpus=())
    assert plan_container([LLAMA, other], DOCKER, image="both:1", gpus=()).image == "both:1"


def test_cpu_engine_has_no_public_image() -> None:
    with pytest.raises(BadInput, match="No public container image can serve mine"):
        plan(model=ON_CPU)


def test_path_with_a_colon_cannot_be_mounted() -> None:
    model = dataclasses.replace(LLAMA, folders=(Path("/models/a:b"),))
    with pytest.raises(BadInput, match="/models/a:b cannot be mounted into a container"):
        plan(model=model)


def test_folders_of_adapters_are_mounted_read_only(tmp_path: Path) -> None:
    poet, tenants = write_converted(tmp_path / "poet"), tmp_path / "tenants"
    tenants.mkdir()
    adapters = {"lora": (f"poet={poet}",), "runtime_lora_dir": tenants}
    added = set(options_of(plan(openai=True, **adapters))) - set(options_of(plan()))
    assert added == {f"--volume={folder}:{folder}:ro" for folder in (poet, tenants)}
    # Without the OpenAI-compatible API, no client can select the adapters.
    assert plan(openai=False, **adapters) == plan()


def test_adapter_in_a_folder_with_a_colon_cannot_be_mounted(tmp_path: Path) -> None:
    folder = write_converted(tmp_path / "a:b")
    with pytest.raises(BadInput, match="a:b cannot be mounted into a container") as raised:
        plan(openai=True, lora=(f"poet={folder}",))
    assert "--lora and --runtime-lora-dir" in raised.value.next_step


@pytest.mark.parametrize(
    ("host", "fix"),
    [(PODMAN, "nvidia-ctk cdi generate"), (DOCKER, "Toolkit (https://docs.nvidia.com/")],
    ids=["podman", "docker"],
)
def test_missing_gpu_toolkit_is_reported_early(host: ContainerHost, fix: str) -> None:
    with pytest.raises(MissingPart, match="cannot give llama access to GPUs") as raised:
        plan(dataclasses.replace(host, has_gpu_toolkit=False))
    assert fix in raised.value.next_step
