"""Commands of `mpirun`, compared with those of upstream's launch script."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launch.samples import EMBEDDED, MODEL, SYSTEM
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.errors import BadInput, MissingPart
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.planning.server_plan import plan_launch
from trtllm_serve_cli.launch.topology.mpi import MpiHost, Ports, check_mpirun, list_ports
from trtllm_serve_cli.launch.topology.ranks import Ranks
from trtllm_serve_cli.launch.triton.shared_memory import region_prefix
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation
from trtllm_serve_cli.repository.model.instances import EngineInstances

TENSORRT = dataclasses.replace(MODEL, engine_kind="tensorrt")
TP2, TP4 = EngineInstances("tensorrt_llm", 2), EngineInstances("tensorrt_llm", 4)
ROOT = MpiHost(is_root=True, num_gpus=4)


def plan(
    *engines: EngineInstances,
    triton: TritonInstallation = SYSTEM,
    mpi: MpiHost = ROOT,
    environ: dict[str, str] | None = None,
    **options: object,
) -> LaunchPlan:
    return plan_launch(
        [TENSORRT if engines else MODEL],
        triton,
        LaunchOptions(**{"mode": "mpi", "openai": False, **options}),
        servers=Path("/servers"),
        token="secret",
        engines=engines,
        mpi=mpi,
        has_gpu=True,
        environ=environ or {},
    )


def split(argv: tuple[str, ...]) -> list[set[str]]:
    """Split a command into the options of mpirun and those of each rank."""
    own, ranks = argv[: argv.index("-n")], argv[argv.index("-n") :]
    apps = shlex.join(ranks).split(" : ")
    return [set(own), *(set(shlex.split(app)) for app in apps)]


# What scripts/launch_triton_server.py --world_size=4 --model_repo='/my models/mine' starts, at
# v0.9.0 to v0.21.0 of triton-inference-server/tensorrtllm_backend.
UPSTREAM = [
    {"mpirun", "--allow-run-as-root"},
    *(
        {
            "-n", "1", "/opt/tritonserver/bin/tritonserver",
            "--model-repository=/my models/mine",
            "--grpc-port=8001", "--http-port=8000", "--metrics-port=8002",
            "--disable-auto-complete-config",
            f"--backend-config=python,shm-region-prefix-name=prefix{rank}_",
            *(("--model-control-mode=explicit", "--load-model=tensorrt_llm") if rank else ()),
        }
        for rank in range(4)
    ),
]  # fmt: skip


def test_leader_mode_has_upstreams_options() -> None:
    ours = split(plan(TP4).argv)
    assert len(ours) == 5
    differences = [(them - us, us - them) for us, them in zip(ours, UPSTREAM, strict=True)]
    restricted = "shared-memory,model-repository,trace,logging:tllm-token=secret"
    own = {  # Flags of every server that tllm starts.
        "--model-load-thread-count=5",
        "--exit-timeout-secs=86400",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        f"--http-restricted-api={restricted}",
        f"--grpc-restricted-protocol={restricted}",
        "--allow-sagemaker=false",
        "--allow-vertex-ai=false",
        "--allow-gpu-metrics=true",
        "--log-verbose=0",
    }
    no_port = {"--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"}
    assert differences == [
        # Ranks can use all cores.
        (set(), {"--bind-to", "none"}),
        *(
            (
                # Servers on one machine must not share memory regions.
                {f"--backend-config=python,shm-region-prefix-name=prefix{rank}_"},
                own
                | {f"--backend-config=python,shm-region-prefix-name=tllm-8000-2bb80d53-{rank}-"}
                # Only the first rank opens ports. --model-control-mode=none is the default.
                | (no_port if rank else {"--model-control-mode=none"}),
            )
            for rank in range(4)
        ),
    ]


def test_leader_serves_alone() -> None:
    made = plan(TP2)
    assert (made.mode, made.environ, made.replicas) == ("mpi", {}, ())
    assert made.argv.count("-n") == 2
    assert made.every_port == made.ports == {"HTTP": 8000, "gRPC": 8001, "metrics": 8002}
    assert LaunchPlan.from_json(made.to_json()) == made


def test_two_instances_on_four_gpus_in_leader_mode() -> None:
    """Upstream's guide: launch_triton_server.py --world_size 2 with CUDA_VISIBLE_DEVICES, twice."""
    first = plan(TP2, gpus="0,1", http_port=8000, grpc_port=8001, metrics_port=8004)
    other = plan(TP2, gpus="2,3", http_port=8002, grpc_port=8003, metrics_port=8005)
    assert [each.environ for each in (first, other)] == [
        {"CUDA_VISIBLE_DEVICES": "0,1"},
        {"CUDA_VISIBLE_DEVICES": "2,3"},
    ]
    for made, http, rank in (
        (first, 8000, 0),
        (first, 8000, 1),
        (other, 8002, 0),
        (other, 8002, 1),
    ):
        arguments = split(made.argv)[1 + rank]
        assert f"--http-port={http}" in arguments
        assert (
            f"--backend-config=python,shm-region-prefix-name={region_prefix(http, 'secret')}{rank}-"
            in arguments
        )


def test_two_instances_on_four_gpus_in_orchestrator_mode() -> None:
    """Upstream's guide: gpu_device_ids 0,1;2,3 and launch_triton_server.py --multi-model."""
    made = plan(dataclasses.replace(TP2, gpus=((0, 1), (2, 3))))
    assert made.environ == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    own, arguments = split(made.argv)
    assert own == {"mpirun", "--allow-run-as-root", "--bind-to", "none"}
    assert arguments >= {
        "--model-control-mode=none",
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        *(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(4)),
    }


def test_two_models_on_four_gpus_in_orchestrator_mode() -> None:
    """Upstream's guide: a copy of tensorrt_llm, gpu_device_ids 0,1 and 2,3, --multi-model."""
    first = dataclasses.replace(TP2, gpus=((0, 1),))
    other = EngineInstances("tensorrt_llm_2", 2, gpus=((2, 3),))
    made, declared = plan(first, other), plan(first, other, multi_model=True, world_size=1)
    assert made == declared
    assert made.environ == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    assert made.argv.count("-n") == 1
    assert made.argv.count("--pinned-memory-pool-byte-size=0") == 1


def test_instances_on_one_gpu_need_no_mpi() -> None:
    """Upstream's guide: CUDA_VISIBLE_DEVICES=<gpu> tritonserver, with a higher instance count."""
    made = plan(EngineInstances("tensorrt_llm", 1), mode="local", gpus="2")
    assert made.environ == {"CUDA_VISIBLE_DEVICES": "2"}
    assert made.argv[:2] == (str(SYSTEM.binary), "--model-repository=/my models/mine")


def test_mig_slices() -> None:
    """CUDA exposes one MIG device to a process, so each of two devices gets one rank."""
    one = EngineInstances("tensorrt_llm", 1)
    made = plan(one, gpus="MIG-6b0d5a2c-1")
    assert made.environ == {"CUDA_VISIBLE_DEVICES": "MIG-6b0d5a2c-1"}
    assert made.argv.count("-n") == 1
    servers = plan(world_size=2, gpus="MIG-a,MIG-b", triton=EMBEDDED)
    arguments = [word for word in servers.argv if word.startswith("CUDA_VISIBLE_DEVICES=")]
    assert arguments == ["CUDA_VISIBLE_DEVICES=MIG-a", "CUDA_VISIBLE_DEVICES=MIG-b"]


def test_two_models_on_four_gpus_without_spawned_processes() -> None:
    """Upstream's guide: participant_ids, --multi-model --disable-spawn-processes --world_size=5."""
    first = EngineInstances("tensorrt_llm", 2, participants=((1, 2),))
    other = EngineInstances("tensorrt_llm_2", 2, participants=((3, 4),))
    made = plan(first, other, disable_spawn_processes=True, world_size=5)
    assert made.environ == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"}
    _, orchestrator, *others = split(made.argv)
    loads = {"--load-model=tensorrt_llm", "--load-model=tensorrt_llm_2"}
    assert orchestrator & loads == set()
    assert [arguments & loads for arguments in others] == [loads] * 4
    assert not [word for word in made.argv if "memory-pool" in word]


@pytest.mark.parametrize(("version", "count"), [("24.05", 0), ("24.06", 0), ("24.07", 1), ("", 1)])
def test_pool_flags_depend_on_the_triton_version(version: str, count: int) -> None:
    environ = {"NVIDIA_TRITON_SERVER_VERSION": version}
    made = plan(TP2, multi_model=True, environ=environ)
    assert made.argv.count("--enable-peer-access=false") == count


def test_python_engines_run_as_separate_servers() -> None:
    made = plan(world_size=2, gpus="0,1", triton=EMBEDDED, mpi=MpiHost())
    own, first, other = split(made.argv)
    assert own == {"mpirun", "--bind-to", "none"}
    assert other - first == {
        "--http-port=8003",
        "--grpc-port=8004",
        "--metrics-port=8005",
        "--backend-config=python,shm-region-prefix-name=tllm-8000-2bb80d53-1-",
        "CUDA_VISIBLE_DEVICES=1",
    }
    assert len(first - other) == len(other - first)
    assert "CUDA_VISIBLE_DEVICES" not in made.environ
    assert made.replicas == (
        Endpoint("127.0.0.1:8004", "127.0.0.1:8003", "127.0.0.1:8005", "secret"),
    )
    assert made.every_port == made.ports | {
        "HTTP of rank 1": 8003, "gRPC of rank 1": 8004, "metrics of rank 1": 8005,
    }  # fmt: skip
    assert LaunchPlan.from_json(made.to_json()) == made
    assert "secret" not in str(made.as_dict())


def test_environment_is_exported_to_nodes_of_a_hostfile() -> None:
    made = plan(
        TP2, gpus="0", hostfile=Path("/my hosts"), oversubscribe=True, triton=SYSTEM, mpi=MpiHost()
    )
    assert made.argv[:10] == (
        "mpirun", "--oversubscribe", "--hostfile", "/my hosts", "--bind-to", "none",
        "-n", "1", "-x", "CUDA_VISIBLE_DEVICES",
    )  # fmt: skip
    assert made.argv.count("CUDA_VISIBLE_DEVICES") == 2


@given(st.lists(st.integers(1, 65535), min_size=3, max_size=3, unique=True), st.integers(1, 8))
def test_servers_have_distinct_ports(ports: list[int], world_size: int) -> None:
    http, grpc, metrics = ports
    options = LaunchOptions(http_port=http, grpc_port=grpc, metrics_port=metrics)
    try:
        listed = list_ports(Ranks(world_size, "servers"), options)
    except BadInput:
        return
    used = [port for each in listed for port in dataclasses.astuple(each)]
    assert listed[0] == Ports(http, grpc, metrics)
    assert len(used) == len(set(used)) == 3 * world_size
    assert max(used) <= 65535


def test_ports_above_the_range_are_rejected() -> None:
    with pytest.raises(BadInput) as raised:
        plan(world_size=3, http_port=65000, grpc_port=65100, metrics_port=65200)
    assert raised.value.why == (
        "each server uses a range of 201 ports, so the last port would be 65602, but the highest "
        "valid port is 65535"
    )


def test_llm_api_engine_is_rejected() -> None:
    model = dataclasses.replace(MODEL, engine_kind="pytorch")
    with pytest.raises(BadInput, match="mine cannot be started with mpirun"):
        plan_launch(
            [model], SYSTEM, LaunchOptions(mode="mpi"), servers=Path("/servers"), token="secret"
        )


def test_missing_mpirun_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MissingPart, match="mpirun is not installed"):
        check_mpirun({"PATH": str(tmp_path)})
