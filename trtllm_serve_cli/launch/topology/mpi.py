"""Plan the `mpirun` command that starts Triton for engines with several ranks.

The command is for Open MPI's `mpirun`, which NVIDIA's containers include. Comments in this module
explain the differences from scripts/launch_triton_server.py in
triton-inference-server/tensorrtllm_backend.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.errors import BadInput, MissingPart
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.topology.ranks import Ranks
from trtllm_serve_cli.launch.triton.triton_command import Flags, other_rank_flags
from trtllm_serve_cli.repository.model.store import ImportedModel

# Last Triton version that does not support the flags from `pool_flags`.
_LAST_WITHOUT_POOLS = (24, 6)


@dataclass(frozen=True, slots=True)
class MpiHost:
    """The machine or container on which `mpirun` runs.

    `is_root` is true if root runs `mpirun`. `num_gpus` is the number of GPUs visible to Triton.
    """

    is_root: bool = False
    num_gpus: int = 0


@dataclass(frozen=True, slots=True)
class Ports:
    http: int
    grpc: int
    metrics: int


def check_mpirun(environ: Mapping[str, str]) -> None:
    """Raise `MissingPart` if `mpirun` is not on PATH."""
    if shutil.which("mpirun", path=environ.get("PATH")) is None:
        raise MissingPart(
            "mpirun is not installed.",
            why="--mode mpi starts processes with Open MPI's mpirun, which is not on PATH",
            next_step="run `apt-get install openmpi-bin`, or run tllm in an NVIDIA container "
            "image that includes mpirun",
        )


def check_models(models: Iterable[ImportedModel]) -> None:
    """Raise `BadInput` if a model's engine cannot run under `mpirun`."""
    for model in models:
        if why := find_kind(model.engine_kind).deployment.refuses_mpirun:
            raise BadInput(
                f"{model.name} cannot be started with mpirun.",
                why=why,
                next_step=f"run `tllm start -m {model.name} --mode local`",
            )


def list_ports(ranks: Ranks, options: LaunchOptions) -> list[Ports]:
    """Return the ports of each process that opens ports, in process order.

    If each process is a separate server, the servers use consecutive port ranges, for example 8000
    to 8002 and 8003 to 8005. Otherwise, only the first process opens ports. Raise `BadInput` if a
    port exceeds 65535.
    """
    first = (options.http_port, options.grpc_port, options.metrics_port)
    if ranks.mode != "servers":
        return [Ports(*first)]
    span = max(first) - min(first) + 1
    last = max(first) + span * (ranks.world_size - 1)
    if last > 65535:
        raise BadInput(
            f"The ports of {ranks.world_size} servers exceed the valid range.",
            why=(
                f"each server uses a range of {span} ports, so the last port would be {last}, but "
                "the highest valid port is 65535"
            ),
            next_step="choose lower ports that are closer together, for example --http-port 8000 "
            "--grpc-port 8001 --metrics-port 8002",
        )
    return [Ports(*(port + rank * span for port in first)) for rank in range(ranks.world_size)]


def rank_flags(flags: Flags, rank: int, ranks: Ranks, options: LaunchOptions) -> Flags:
    """Return Triton's flags for process `rank`, derived from the server's `flags`."""
    changes: Flags = {"backend-config": f"{flags['backend-config']}{rank}-"}
    if rank and ranks.mode == "servers":
        ports = list_ports(ranks, options)[rank]
        changes["http-port"] = str(ports.http)
        changes["grpc-port"] = str(ports.grpc)
        changes["metrics-port"] = str(ports.metrics)
    elif rank:
        changes |= other_rank_flags(ranks.engines)
    return flags | changes


def pool_flags(ranks: Ranks, num_gpus: int, environ: Mapping[str, str]) -> Flags:
    """Return the flags that disable memory pools and peer access if Triton spawns the ranks.

    Return no flags if Triton does not spawn the ranks, or if this Triton version does not support
    the flags. If `NVIDIA_TRITON_SERVER_VERSION` is not set, assume that it supports the flags.
    """
    major, _, minor = environ.get("NVIDIA_TRITON_SERVER_VERSION", "").partition(".")
    is_known = major.isdigit() and minor.isdigit()
    if not ranks.spawns or (is_known and (int(major), int(minor)) <= _LAST_WITHOUT_POOLS):
        return {}
    return {
        "pinned-memory-pool-byte-size": "0",
        "enable-peer-access": "false",
        "cuda-memory-pool-byte-size": tuple(f"{gpu}:0" for gpu in range(num_gpus)),
    }


def ranks_environ(ranks: Ranks, options: LaunchOptions) -> dict[str, str]:
    """Return the environment variables for all server processes."""
    changes = {}
    if options.gpus and not ranks.gpus:
        changes["CUDA_VISIBLE_DEVICES"] = options.gpus
    if ranks.mode == "orchestrator":
        changes["TRTLLM_ORCHESTRATOR"] = "1"
        changes["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] = str(int(ranks.spawns))
    return changes


def mpirun_words(*, is_root: bool, placement: Iterable[str] = ()) -> list[str]:
    """Return `mpirun` and its options. `placement` contains the options that select the nodes."""
    # Do not use an absolute path, because mpirun would prepend its folder to the PATH of the ranks.
    words = ["mpirun"]
    if is_root:  # Without this option, Open MPI refuses to run as root.
        words.append("--allow-run-as-root")
    # Without --bind-to none, Open MPI may bind all threads of a rank to one core.
    return [*words, *placement, "--bind-to", "none"]


def mpirun_command(
    commands: Sequence[tuple[str, ...]],
    mpi: MpiHost,
    ranks: Ranks,
    options: LaunchOptions,
    environ: Iterable[str],
) -> tuple[str, ...]:
    """Return the `mpirun` command that runs each of `commands` as one rank, in order.

    `environ` contains the names of environment variables to export to other nodes. Local processes
    inherit the variables, so `mpirun` exports them only with a hostfile.
    """
    placement = ["--oversubscribe"] if options.oversubscribe else []
    if options.hostfile is not None:
        placement += ["--hostfile", str(options.hostfile)]
    words = mpirun_words(is_root=mpi.is_root, placement=placement)
    for rank, command in enumerate(commands):
        words += [":"] if rank else []
        words += ["-n", "1"]
        if options.hostfile is not None:
            words += [word for name in environ for word in ("-x", name)]
        if ranks.gpus:
            words += ["-x", f"CUDA_VISIBLE_DEVICES={','.join(ranks.gpus[rank])}"]
        words += command
    return tuple(words)
