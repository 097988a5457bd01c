"""Several instances of one engine, as upstream's backend places them on GPUs.

`gpu_device_ids` has a group of GPUs for each instance, such as 0,1;2,3, and upstream wants exactly
as many groups as instances. Source: docs/llama_multi_instance.md of
triton-inference-server/tensorrtllm_backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.repository.findings import Checked, Finding
    from trtllm_serve_cli.repository.opened import OpenRepository

_COUNT = "tensorrt_llm_instance_count"
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


def with_instance_count(wanted: Mapping[str, str]) -> dict[str, str]:
    """`wanted` with as many instances as groups of GPUs; raises `BadInput` if it says another."""
    if not wanted.get(_GPUS):
        return dict(wanted)
    count = str(_count_groups(wanted[_GPUS]))
    if wanted.get(_COUNT, count) != count:
        raise BadInput(
            f"{_COUNT} is {wanted[_COUNT]}, and the GPUs {wanted[_GPUS]} are for {count}.",
            why=f"each instance needs a group of {_GPUS} of its own",
            next_step=f"leave {_COUNT} out, or give {_GPUS} as many groups, such as 0,1;2,3",
        )
    return {**wanted, _COUNT: count}


def check_instances(checked: Checked, model: str) -> Iterator[Finding]:
    """A finding when a model's instances and groups of GPUs differ in number."""
    gpus = checked.repository.value(model, f"parameters.{_GPUS}")
    num_instances = sum(group.count for group in checked.configs[model].instance_group) or 1
    if gpus and _count_groups(gpus) != num_instances:
        yield checked.finding(
            "error",
            model,
            f"{_GPUS} {gpus} is for {_count_groups(gpus)} instances, and there are {num_instances}",
            f'{checked.set_command} "{_GPUS}={gpus}" {_COUNT}={_count_groups(gpus)}',
            place=f"parameters.{_GPUS}",
        )


def check_ranks_of_instances(
    checked: Checked, model: str, world_size: int | None
) -> Iterator[Finding]:
    """A finding when an instance's GPUs are not as many as the engine's ranks."""
    gpus = checked.repository.value(model, f"parameters.{_GPUS}")
    if not gpus or world_size is None:
        return
    groups = gpus.split(";")
    odd = [group for group in groups if group.count(",") + 1 != world_size]
    if odd:
        yield checked.finding(
            "error",
            model,
            f"{_GPUS} {gpus} has the group {odd[0]}, and the engine is of {world_size} ranks",
            f'{checked.set_command} "{_GPUS}={_such_as(world_size, len(groups))}"',
            place=f"parameters.{_GPUS}",
        )


def _such_as(world_size: int, num_instances: int) -> str:
    """GPUs for the instances, from the first one on."""
    return ";".join(
        ",".join(str(each * world_size + gpu) for gpu in range(world_size))
        for each in range(num_instances)
    )


def _count_groups(gpu_device_ids: str) -> int:
    return gpu_device_ids.count(";") + 1
