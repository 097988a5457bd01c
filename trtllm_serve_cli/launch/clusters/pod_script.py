"""Render the shell script that starts Triton in a pod.

If the engine needs several processes, the script starts Triton with `mpirun`. For a multi-node
model, `mpirun` uses `kubectl exec` instead of ssh to start processes in other pods.
"""

from __future__ import annotations

from trtllm_serve_cli.launch.containers.deployment import (
    CORE_MODEL,
    Deployable,
    split_evenly,
    triton_words,
)
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.topology.mpi import mpirun_words, pool_flags, ranks_environ
from trtllm_serve_cli.launch.topology.ranks import Ranks
from trtllm_serve_cli.launch.triton.triton_command import flag_words, other_rank_flags
from trtllm_serve_cli.launch.triton.triton_install import IN_CONTAINER
from trtllm_serve_cli.rendering import render
from trtllm_serve_cli.runtime.pulse import PULSES_VARIABLE

# Use fixed ports, because each pod has its own network namespace.
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
AGENT_FOLDER = "/opt/tllm"
# The folder from which the gateway reads the ID of the main process in Triton's container.
GATEWAY_FOLDER = "/run/tllm"
# Path prefix of the server's files in /dev/shm. /dev/shm is a pod volume, so the files outlive the
# container.
SHARED_FILES = "/dev/shm/tllm-pod-"
# The folder for heartbeat files.
PULSES_FOLDER = f"{SHARED_FILES}pulses"


def pod_script(
    model: Deployable, launch: LaunchOptions, *, nodes: int, has_gateway: bool = False
) -> str:
    """Return the script for the pod that serves requests for `model`.

    The script distributes the engine's ranks evenly across `nodes` pods and starts all ranks.
    `has_gateway` is true if the pod also runs the OpenAI-compatible gateway. Raise `BadInput` if
    the ranks cannot be distributed evenly, or if the OpenTelemetry collector URL is not valid.
    """
    words = triton_words(
        model,
        IN_CONTAINER,
        launch,
        token='"$TLLM_TOKEN"',
        unquoted={
            **{f"{name}-port": str(port) for name, port in PORTS.items()},
            "backend-config": "python,shm-region-prefix-name="
            f"{SHARED_FILES.removeprefix('/dev/shm/')}",
        },
    )
    server = [str(IN_CONTAINER.binary), *words.values()]
    is_mpi = nodes > 1 or model.num_ranks > 1 or model.spawns
    agent = ["--mca plm_rsh_agent", f"{AGENT_FOLDER}/kubessh", '--host "$hosts"']
    mpirun = mpirun_words(is_root=True, placement=agent if nodes > 1 else ())
    return render(
        "kubernetes/server.sh.j2",
        command=[*mpirun, *_ranks(model, server, words)] if is_mpi else server,
        is_mpi=is_mpi,
        nodes=nodes,
        slots=split_evenly(model.num_ranks, nodes, "ranks"),
        gateway_folder=GATEWAY_FOLDER if has_gateway else None,
        shared_files=SHARED_FILES,
        pulses_folder=PULSES_FOLDER,
        pulses_variable=PULSES_VARIABLE,
    )


def _ranks(model: Deployable, server: list[str], words: dict[str, str]) -> list[str]:
    if model.is_llm_api:
        # Run the same command on every rank. trtllm-llmapi-launch starts the server only on the
        # first rank.
        return [f"-n {model.num_ranks} trtllm-llmapi-launch", *server]
    if model.spawns:
        ranks = Ranks(mode="orchestrator", spawns=True)
        environ = ranks_environ(ranks, LaunchOptions())
        # Do not check Triton's version, because every version that supports several instances also
        # supports the pool flags.
        pools = flag_words(pool_flags(ranks, model.num_gpus, {}))
        return ["-n 1", *(f"-x {name}={value}" for name, value in environ.items()), *server, *pools]
    others = flag_words(other_rank_flags((CORE_MODEL,)))
    rank_flags = [words["model-repository"], words["disable-auto-complete-config"], *others]
    return ["-n 1", *server, f": -n {model.num_ranks - 1}", server[0], *rank_flags]
