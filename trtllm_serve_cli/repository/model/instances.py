"""Several instances of `tensorrt_llm`: engines of their own, or front ends of one.

`gpu_device_ids` has a group of GPUs for each engine, such as 0,1;2,3, and upstream wants exactly
as many groups as instances. Source: docs/llama_multi_instance.md of
triton-inference-server/tensorrtllm_backend. With `instances_share_engine` there is one engine, and
the instances share the work of telling its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtllm_serve_cli.engine_kinds.checkpoint_serving import count_gpu_groups
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.parameters import load_parameters

if TYPE_CHECKING:
    from trtllm_serve_cli.repository.model.findings import Checked, Finding
    from trtllm_serve_cli.repository.model.model_repository import OpenRepository

_COUNT = "tensorrt_llm_instance_count"
_SHARED = "instances_share_engine"
_GPUS = "gpu_device_ids"
_MODEL = "tensorrt_llm"


@dataclass(frozen=True, slots=True)
class EngineInstances:
    """An engine of `world_size` ranks that Triton's C++ backend runs as the model `model`.

    `gpus` and `participants` have a group of numbers per instance, or nothing: the GPUs among those
    that the process sees, and in orchestrator mode the MPI ranks.
    """

    model: str
    world_size: int
    gpus: tuple[tuple[int, ...], ...] = ()
    participants: tuple[tuple[int, ...], ...] = ()

    @property
    def count(self) -> int:
        return max(1, len(self.gpus), len(self.participants))

    @property
    def num_gpus(self) -> int:
        """How many the process has to see: groups count from the first one."""
        return max((max(group) + 1 for group in self.gpus), default=self.world_size)


def read_instances(
    repository: OpenRepository, world_size: int, *, name: str = _MODEL
) -> EngineInstances | None:
    """How the repository's engine, of `world_size` ranks and served as `name`, is to be run.

    None for an engine that Triton's C++ backend does not run. Raises `BadInput` for groups that are
    not numbers.
    """
    if _MODEL not in repository.texts or repository.value(_MODEL, "backend") != "tensorrtllm":
        return None
    return EngineInstances(
        name, world_size, read_gpu_groups(repository), _groups(repository, "participant_ids")
    )


def read_gpu_groups(repository: OpenRepository) -> tuple[tuple[int, ...], ...]:
    """The GPUs of each instance of `tensorrt_llm`, nothing where that is left open.

    Raises `BadInput` for groups that are not numbers.
    """
    return _groups(repository, _GPUS) if _MODEL in repository.texts else ()


def _groups(repository: OpenRepository, parameter: str) -> tuple[tuple[int, ...], ...]:
    value = repository.value(_MODEL, f"parameters.{parameter}")
    try:
        return tuple(
            tuple(int(number) for number in group.split(","))
            for group in (value.split(";") if value else ())
        )
    except ValueError as error:
        raise BadInput(
            f"{parameter} of {repository.name} is {value}.",
            why="it has to be whole numbers: those of an instance between commas, instances "
            "between semicolons",
            next_step=f'tllm set {repository.target} "{parameter}=0,1;2,3"',
        ) from error


def with_instance_count(overrides: Mapping[str, str], kind: str) -> dict[str, str]:
    """`wanted` with as many engines of `kind` as groups of GPUs.

    Raises `BadInput` if it says another number, or that several groups share an engine.
    """
    gpus = overrides.get(_GPUS)
    if not gpus:
        return dict(overrides)
    can_share = load_parameters()[_SHARED].applies_to(kind)
    count = count_gpu_groups(gpus)
    if can_share and count == 1:
        # One engine has as many instances as it has front ends.
        return dict(overrides)
    implied = {_COUNT: str(count)} | ({_SHARED: "false"} if can_share else {})
    for name, value in implied.items():
        if overrides.get(name, value) != value:
            raise BadInput(
                f"{name} is {overrides[name]}, and the GPUs {gpus} are for {count}.",
                why=f"each instance needs a group of {_GPUS} of its own",
                next_step=f"leave {name} out, or give {_GPUS} as many groups, such as 0,1;2,3",
            )
    return {**overrides, **implied}


def list_implied(names: Iterable[str]) -> set[str]:
    """Those parameters, and the ones that follow from them."""
    names = set(names)
    return names | {_COUNT, _SHARED} if _GPUS in names else names


def check_instances(checked: Checked, model: str) -> Iterator[Finding]:
    """Findings about engines and groups of GPUs of different number, and a queue that is torn.

    Instances that share an engine each take what comes next, whatever waits at another.
    """
    gpus = checked.repository.value(model, f"parameters.{_GPUS}")
    config = checked.configs[model]
    num_instances = sum(group.count for group in config.instance_group) or 1
    is_shared = checked.repository.value(model, f"parameters.{_SHARED}").lower() in ("true", "1")
    if gpus and count_gpu_groups(gpus) != (1 if is_shared else num_instances):
        instances = "they share an engine" if is_shared else f"there are {num_instances}"
        yield checked.finding(
            "error",
            model,
            f"{_GPUS} {gpus} is for {count_gpu_groups(gpus)} instances, and {instances}",
            f'{checked.set_command} "{_GPUS}={gpus}" {_COUNT}={count_gpu_groups(gpus)}',
            place=f"parameters.{_GPUS}",
        )
    queue = config.dynamic_batching
    has_order = queue.priority_levels or queue.default_queue_policy.default_timeout_microseconds
    if is_shared and num_instances > 1 and has_order:
        yield checked.finding(
            "error",
            model,
            f"{_COUNT} is {num_instances}, of one engine, and a queue with priorities or timeouts "
            "is for one",
            f"{checked.set_command} {_COUNT}=1",
            place="instance_group.count",
        )


def check_ranks_of_instances(
    checked: Checked, model: str, world_size: int | None
) -> Iterator[Finding]:
    """A finding when an instance's GPUs are not as many as the engine's ranks."""
    gpus = checked.repository.value(model, f"parameters.{_GPUS}")
    if not gpus or world_size is None:
        return
    groups = gpus.split(";")
    mismatched = [group for group in groups if group.count(",") + 1 != world_size]
    if mismatched:
        yield checked.finding(
            "error",
            model,
            f"{_GPUS} {gpus} has the group {mismatched[0]}, and the engine is of "
            f"{world_size} ranks",
            f'{checked.set_command} "{_GPUS}={_example_groups(world_size, len(groups))}"',
            place=f"parameters.{_GPUS}",
        )


def _example_groups(world_size: int, num_instances: int) -> str:
    """GPUs for the instances, from the first one on."""
    return ";".join(
        ",".join(str(each * world_size + gpu) for gpu in range(world_size))
        for each in range(num_instances)
    )
