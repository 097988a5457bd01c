"""How many processes serve a model's engine, what each of them loads, and which GPUs it sees.

Leader mode: as many processes as the engine has ranks; the first one serves, the others load the
engine alone and never open a port. Orchestrator mode: one process serves several engines, or
several instances of one, and spawns their ranks, or finds them among processes started beside it.
Where Python serves the engine, it has no ranks, and each process is a whole server with ports of
its own.

Source of the modes: README.md, docs/llama_multi_instance.md and scripts/launch_triton_server.py of
triton-inference-server/tensorrtllm_backend.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.repository.model.instances import EngineInstances

_GPU = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


@dataclass(frozen=True, slots=True)
class Ranks:
    """`world_size` processes under MPI; 1 without it.

    `engines` are the models that all processes but the first load, nothing for whole servers.
    `gpus` has what each process sees, or nothing where all see the same.
    """

    world_size: int = 1
    mode: Literal["alone", "leader", "orchestrator", "servers"] = "alone"
    spawns: bool = False
    engines: tuple[str, ...] = ()
    gpus: tuple[tuple[str, ...], ...] = ()


def plan_ranks(engines: Sequence[EngineInstances], options: LaunchOptions) -> Ranks:
    """The processes for `engines`, those of Triton's C++ backend, or for Python's where none.

    Raises `BadInput` where engines and options do not agree.
    """
    gpus = parse_gpus(options.gpus)
    if options.mode == "container" and options.hostfile is not None:
        raise BadInput(
            "The processes of a container are all on this machine.",
            why="--hostfile is for mpirun on several nodes",
            next_step="leave it out; for several nodes with containers: tllm deploy slurm --help",
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
            _check_world_size(options, engine.world_size, f"{engine.model}'s engine has"), "leader",
            engines=names,
        )  # fmt: skip
    if options.disable_spawn_processes:
        required = 1 + max(_highest_participant(engine) for engine in engines)
        reason = "participant_ids and the orchestrator are"
        return Ranks(_check_world_size(options, required, reason), "orchestrator", engines=names)
    if options.hostfile is not None:
        raise BadInput(
            "Spawned processes are all on this machine.",
            why="an orchestrator that spawns its engines' ranks does not look at --hostfile",
            next_step="add --disable-spawn-processes, and set each model's participant_ids",
        )
    return Ranks(
        _check_world_size(options, 1, "an orchestrator that spawns is"), "orchestrator", spawns=True
    )


def parse_gpus(text: str | None) -> tuple[str, ...]:
    """GPUs as CUDA_VISIBLE_DEVICES has them: indices, or ids of GPUs and of MIG's parts of them."""
    gpus = tuple(word.strip() for word in text.split(",")) if text else ()
    for gpu in gpus:
        if not _GPU.fullmatch(gpu):
            raise BadInput(
                f"{gpu!r} is no GPU.",
                why="a GPU is an index, GPU-<uuid> or MIG-<uuid>",
                next_step="`nvidia-smi -L` shows those there are; such as --gpus 0,1",
            )
    if len(set(gpus)) < len(gpus):
        raise BadInput(f"--gpus {text} names a GPU twice.", next_step="name each one once")
    return gpus


def _plan_alone(engines: Sequence[EngineInstances], options: LaunchOptions) -> Ranks:
    for engine in engines:
        if engine.world_size > 1:
            raise BadInput(
                f"{engine.model}'s engine needs {engine.world_size} processes.",
                why=f"it was built for {engine.world_size} ranks, each on a GPU of its own",
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
            f"{', '.join(used)} is for servers under MPI.",
            why=f"this one is to run in the mode {options.mode}",
            next_step="add --mode mpi",
        )
    return Ranks()


def _plan_servers(options: LaunchOptions, gpus: tuple[str, ...]) -> Ranks:
    world_size = options.world_size or 1
    if options.multi_model or options.disable_spawn_processes or options.hostfile is not None:
        raise BadInput(
            "There is no engine of Triton's C++ backend to run over several processes or nodes.",
            why="where Python serves the engine, each process is a whole server of its own",
            next_step="leave --multi-model, --disable-spawn-processes and --hostfile out",
        )
    if not gpus:
        return Ranks(world_size, "servers")
    group_size = len(gpus) // world_size
    if group_size * world_size != len(gpus):
        raise BadInput(
            f"{len(gpus)} GPUs cannot be shared out among {world_size} servers.",
            why="each gets as many as the others",
            next_step=f"name {world_size} GPUs, or as many times more",
        )
    groups = tuple(gpus[rank * group_size : (rank + 1) * group_size] for rank in range(world_size))
    for each in groups:
        _check_mig(each)
    return Ranks(world_size, "servers", gpus=groups)


def _check_world_size(options: LaunchOptions, required: int, reason: str) -> int:
    if options.world_size not in (None, required):
        plural = "es" if required > 1 else ""
        raise BadInput(
            f"--world-size {options.world_size} does not fit.",
            why=f"{reason} {required} process{plural}",
            next_step=f"leave it out, or say --world-size {required}",
        )
    return required


def _check_gpus(engine: EngineInstances, gpus: tuple[str, ...], *, spans_nodes: bool) -> None:
    for group in engine.gpus:
        if len(group) != engine.world_size:
            raise BadInput(
                f"gpu_device_ids of {engine.model} has {len(group)} GPUs for an instance.",
                why=f"its engine was built for {engine.world_size}",
                next_step=f"give each instance {engine.world_size}, such as 0,1;2,3 for 2",
            )
    if not gpus:
        return
    if engine.num_gpus > len(gpus) and not spans_nodes:
        raise BadInput(
            f"{engine.model} needs {engine.num_gpus} GPUs.",
            why=f"--gpus {','.join(gpus)} lets the server see {len(gpus)}, which count from 0",
            next_step="name more, or leave --gpus out",
        )
    _check_mig(gpus)


def _check_mig(gpus: tuple[str, ...]) -> None:
    if len(gpus) > 1 and any(gpu.startswith("MIG-") for gpu in gpus):
        raise BadInput(
            f"A process cannot use {len(gpus)} GPUs with a part made by MIG among them.",
            why="CUDA shows a process the first of such parts, and nothing else",
            next_step="name one MIG-<uuid> per server",
        )


def _highest_participant(engine: EngineInstances) -> int:
    """The highest rank among them."""
    for group in engine.participants:
        if len(group) != engine.world_size or min(group) < 1:
            raise BadInput(
                f"participant_ids of {engine.model} do not fit its engine.",
                why=f"{','.join(map(str, group))} should be {engine.world_size} ranks from 1 on; "
                "rank 0 is the orchestrator",
                next_step=f"tllm set {engine.model} participant_ids=1,2",
            )
    if not engine.participants:
        raise BadInput(
            f"{engine.model} does not say which ranks run it.",
            why="without spawned processes every model has to",
            next_step=f"tllm set {engine.model} participant_ids=1,2   (rank 0 is the orchestrator)",
        )
    return max(max(group) for group in engine.participants)
