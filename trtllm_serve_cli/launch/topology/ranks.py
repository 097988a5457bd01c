"""Plan the processes that serve a model's engine, and the models and GPUs of each process.

- Leader mode: each engine rank runs in a separate process. The first process serves requests. The
  other processes only load the engine and do not open ports.
- Orchestrator mode: one process serves several engines, or several instances of one engine. The
  orchestrator spawns the ranks or uses ranks that `mpirun` started.
- Servers: an engine that runs in Python has no ranks, so each process is a separate server with its
  own ports.

The modes follow README.md, docs/llama_multi_instance.md and scripts/launch_triton_server.py in
triton-inference-server/tensorrtllm_backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.repository.model.instances import EngineInstances
from trtllm_serve_cli.sizing.gpus import parse_gpu_ids


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that `mpirun` starts for a server, or one process without MPI.

    - `mode`: "alone" without MPI, otherwise one of the modes in the module docstring.
    - `spawns`: true if an orchestrator spawns the ranks.
    - `engines`: models to load in all processes except the first. Empty without MPI, if the ranks
      are spawned, or if each process is a separate server.
    - `gpus`: GPUs for each process. Empty if all processes can use the same GPUs.
    """

    world_size: int = 1
    mode: Literal["alone", "leader", "orchestrator", "servers"] = "alone"
    spawns: bool = False
    engines: tuple[str, ...] = ()
    gpus: tuple[tuple[str, ...], ...] = ()


def plan_ranks(engines: Sequence[EngineInstances], options: LaunchOptions) -> Ranks:
    """Plan the processes for `engines`, which Triton's C++ backend runs.

    If `engines` is empty, plan for an engine that runs in Python. Raise `BadInput` if options
    conflict, or if options or the parameters `gpu_device_ids` and `participant_ids` do not match
    the engines.
    """
    gpus = parse_gpu_ids(options.gpus)
    if options.mode == "container" and options.hostfile is not None:
        raise BadInput(
            "--hostfile cannot be used with containers.",
            why="all processes in a container run on this machine",
            next_step="omit --hostfile, or run on several nodes with `tllm deploy slurm`",
        )
    for engine in engines:
        _check_gpus(engine, gpus, spans_nodes=options.hostfile is not None)
    has_ranks = any(engine.world_size > 1 for engine in engines)
    if options.mode == "local" or (options.mode == "container" and not has_ranks):
        return _plan_alone(engines, options)
    if not engines:
        return _plan_servers(options, gpus)
    names = tuple(engine.model for engine in engines)
    is_several = sum(engine.count for engine in engines) > 1
    if not (options.multi_model or options.disable_spawn_processes or is_several):
        (engine,) = engines
        return Ranks(
            _check_world_size(options, engine.world_size, f"{engine.model}'s engine needs"),
            "leader",
            engines=names,
        )
    if options.disable_spawn_processes:
        required = 1 + max(_highest_participant(engine) for engine in engines)
        reason = "the orchestrator and the ranks in participant_ids need"
        return Ranks(_check_world_size(options, required, reason), "orchestrator", engines=names)
    if options.hostfile is not None:
        raise BadInput(
            "--hostfile cannot be used with spawned processes.",
            why="the orchestrator spawns the engines' ranks only on this machine",
            next_step="add --disable-spawn-processes and set participant_ids for each model",
        )
    return Ranks(
        _check_world_size(options, 1, "an orchestrator that spawns its ranks needs"),
        "orchestrator",
        spawns=True,
    )


def _plan_alone(engines: Sequence[EngineInstances], options: LaunchOptions) -> Ranks:
    for engine in engines:
        if engine.world_size > 1:
            raise BadInput(
                f"{engine.model}'s engine needs {engine.world_size} processes.",
                why=f"the engine was built for {engine.world_size} ranks, each on its own GPU",
                next_step="add --mode mpi",
            )
    mpi_options = {
        "--world-size": (options.world_size or 1) > 1,
        "--multi-model": options.multi_model,
        "--disable-spawn-processes": options.disable_spawn_processes,
        "--oversubscribe": options.oversubscribe,
        "--hostfile": options.hostfile is not None,
    }
    if used := [name for name, is_set in mpi_options.items() if is_set]:
        raise BadInput(
            f"{', '.join(used)} can be used only with MPI.",
            why=f"the server runs in {options.mode} mode",
            next_step="add --mode mpi",
        )
    return Ranks()


def _plan_servers(options: LaunchOptions, gpus: tuple[str, ...]) -> Ranks:
    world_size = options.world_size or 1
    if options.multi_model or options.disable_spawn_processes or options.hostfile is not None:
        raise BadInput(
            (
                "--multi-model, --disable-spawn-processes and --hostfile require an engine that "
                "runs in Triton's C++ backend."
            ),
            why=(
                "these options apply to MPI ranks, but an engine that runs in Python has no ranks"
            ),
            next_step="omit --multi-model, --disable-spawn-processes and --hostfile",
        )
    if not gpus:
        return Ranks(world_size, "servers")
    group_size = len(gpus) // world_size
    if group_size * world_size != len(gpus):
        raise BadInput(
            f"{len(gpus)} GPUs cannot be divided evenly among {world_size} servers.",
            why="each server must use the same number of GPUs",
            next_step=f"pass {world_size} GPUs, or a multiple of {world_size}, with --gpus",
        )
    groups = tuple(gpus[rank * group_size : (rank + 1) * group_size] for rank in range(world_size))
    for each in groups:
        _check_mig(each)
    return Ranks(world_size, "servers", gpus=groups)


def _check_world_size(options: LaunchOptions, required: int, reason: str) -> int:
    if options.world_size not in (None, required):
        plural = "es" if required > 1 else ""
        raise BadInput(
            f"--world-size must be {required}, not {options.world_size}.",
            why=f"{reason} {required} process{plural}",
            next_step=f"omit --world-size, or set --world-size {required}",
        )
    return required


def _check_gpus(engine: EngineInstances, gpus: tuple[str, ...], *, spans_nodes: bool) -> None:
    for group in engine.gpus:
        if len(group) != engine.world_size:
            raise BadInput(
                f"gpu_device_ids of {engine.model} does not match the model's engine.",
                why=f"the number of GPUs per instance must be {engine.world_size}, not "
                f"{len(group)}",
                next_step="separate GPUs with commas and instances with semicolons, for example "
                '`tllm set NAME "gpu_device_ids=0,1;2,3"` for two instances with two GPUs each',
            )
    if not gpus:
        return
    if engine.num_gpus > len(gpus) and not spans_nodes:
        raise BadInput(
            f"{engine.model} needs {engine.num_gpus} GPUs.",
            why=f"--gpus {','.join(gpus)} contains only {len(gpus)} GPU{'s' * (len(gpus) != 1)}, "
            "and the indices in gpu_device_ids refer to the GPUs in --gpus",
            next_step="add GPUs to --gpus, or omit --gpus",
        )
    _check_mig(gpus)


def _check_mig(gpus: tuple[str, ...]) -> None:
    if len(gpus) > 1 and any(gpu.startswith("MIG-") for gpu in gpus):
        raise BadInput(
            "A MIG device cannot be combined with other GPUs in --gpus.",
            why="CUDA exposes only the first MIG device to a process",
            next_step="pass a single MIG device and no other GPUs, for example --gpus MIG-UUID",
        )


def _highest_participant(engine: EngineInstances) -> int:
    """Return the highest rank in `participant_ids`.

    Raise `BadInput` if `participant_ids` is not set, or if the ranks do not match the engine.
    """
    for group in engine.participants:
        if len(group) != engine.world_size or min(group) < 1:
            raise BadInput(
                f"participant_ids of {engine.model} does not match the model's engine.",
                why=(
                    f"each instance needs {engine.world_size} ranks other than 0, the rank of "
                    f"the orchestrator, but an instance has {','.join(map(str, group))}"
                ),
                next_step="set valid ranks, for example with `tllm set NAME participant_ids=1,2`",
            )
    if not engine.participants:
        raise BadInput(
            f"participant_ids is not set for {engine.model}.",
            why="every model must list its ranks if --disable-spawn-processes is set",
            next_step="run, for example, `tllm set NAME participant_ids=1,2` (rank 0 is the "
            "orchestrator)",
        )
    return max(max(group) for group in engine.participants)
