"""Read and check the number of `tensorrt_llm` instances and their GPUs.

By default, each instance runs a separate engine. If `instances_share_engine` is set, all instances
are front ends of a single engine.

`gpu_device_ids` has one group of GPUs per engine, for example 0,1;2,3. Triton's TensorRT-LLM
backend requires exactly one instance per group. Source: docs/llama_multi_instance.md in
triton-inference-server/tensorrtllm_backend.
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
    """The instances of a model that runs an engine in Triton's C++ backend.

    - `model`: the model's name.
    - `world_size`: the engine's number of ranks.
    - `gpus`: one group of GPUs per instance, or empty if the model's configuration does not set
      GPUs. The numbers are indices into the GPUs that are visible to the process.
    - `participants`: one group of MPI ranks per instance in orchestrator mode, or empty if the
      model's configuration does not set MPI ranks.
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
        """The number of GPUs that must be visible to the process.

        This number is the highest index in `gpus` plus one, or `world_size` if `gpus` is empty.
        """
        return max((max(group) + 1 for group in self.gpus), default=self.world_size)


def read_instances(
    repository: OpenRepository, world_size: int, *, name: str = "", model: str = _MODEL
) -> EngineInstances | None:
    """Return the instances of `model`, which runs an engine with `world_size` ranks.

    `name` is the model's name on the server, if this name differs from `model`. Return None if the
    repository does not contain `model`, or if Triton's C++ backend does not run the engine. Raise
    `BadInput` if a GPU or MPI rank is not a non-negative integer.
    """
    if model not in repository.texts or repository.value(model, "backend") != "tensorrtllm":
        return None
    return EngineInstances(
        name or model,
        world_size,
        _groups(repository, _GPUS, model),
        _groups(repository, "participant_ids", model),
    )


def read_gpu_groups(repository: OpenRepository) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs for each instance of `tensorrt_llm`, or () if `gpu_device_ids` is not set.

    Raise `BadInput` if a GPU is not a non-negative integer.
    """
    return _groups(repository, _GPUS) if _MODEL in repository.texts else ()


def _groups(
    repository: OpenRepository, parameter: str, model: str = _MODEL
) -> tuple[tuple[int, ...], ...]:
    value = repository.value(model, f"parameters.{parameter}")
    try:
        return tuple(
            tuple(_parse_number(number) for number in group.split(","))
            for group in (value.split(";") if value else ())
        )
    except ValueError as error:
        raise BadInput(
            f"{value!r} is not a valid value for the {parameter} parameter in {repository.name}.",
            why="the value must be whole numbers, separated by commas within an instance and by "
            "semicolons between instances",
            next_step=f"set a valid value, for example with `tllm set {repository.target} "
            f'"{parameter}=0,1;2,3"`',
        ) from error


def _parse_number(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError(f"{number} is negative")
    return number


def with_instance_count(overrides: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return `overrides` with the number of instances that `gpu_device_ids` requires.

    Each GPU group requires one instance with a separate engine. If the engine kind supports shared
    engines, set `instances_share_engine` to false for several groups, and return `overrides`
    unchanged for a single group. Raise `BadInput` if `overrides` requests a different number of
    instances, or a shared engine for several groups.
    """
    gpus = overrides.get(_GPUS)
    if not gpus:
        return dict(overrides)
    can_share = load_parameters()[_SHARED].applies_to(kind)
    count = count_gpu_groups(gpus)
    if can_share and count == 1:
        # Do not derive the number of instances, because any number of instances can share the
        # single group's engine.
        return dict(overrides)
    implied = {_COUNT: str(count)} | ({_SHARED: "false"} if can_share else {})
    for name, value in implied.items():
        if overrides.get(name, value) != value:
            raise BadInput(
                f"{name}={overrides[name]} contradicts {_GPUS}={gpus}.",
                why="each GPU group requires one instance with a separate engine",
                next_step=f"omit {name}, or change the groups, for example to {_GPUS}=0,1;2,3",
            )
    return {**overrides, **implied}


def list_implied(names: Iterable[str]) -> set[str]:
    """Return `names` and the names of the parameters that `with_instance_count` may add."""
    names = set(names)
    return names | {_COUNT, _SHARED} if _GPUS in names else names


def check_instances(checked: Checked, model: str) -> Iterator[Finding]:
    """Yield findings if the number of instances contradicts the GPU groups or the queue settings.

    Instances that share an engine take requests from the queue independently, so a queue with
    priorities or timeouts requires a single instance.
    """
    gpus = checked.repository.value(model, f"parameters.{_GPUS}")
    config = checked.configs[model]
    num_instances = sum(group.count for group in config.instance_group) or 1
    is_shared = checked.repository.value(model, f"parameters.{_SHARED}").lower() in ("true", "1")
    if gpus and count_gpu_groups(gpus) != (1 if is_shared else num_instances):
        instances = "the instances share an engine" if is_shared else f"{_COUNT} is {num_instances}"
        yield checked.finding(
            "error",
            model,
            f"{_GPUS} is {gpus}, which requires one instance with a separate engine per group, but "
            f"{instances}",
            f'run `{checked.set_command} "{_GPUS}={gpus}" {_COUNT}={count_gpu_groups(gpus)}`',
            place=f"parameters.{_GPUS}",
        )
    queue = config.dynamic_batching
    has_order = queue.priority_levels or queue.default_queue_policy.default_timeout_microseconds
    if is_shared and num_instances > 1 and has_order:
        yield checked.finding(
            "error",
            model,
            f"{_COUNT} is {num_instances}, but a shared engine with queue priorities or timeouts "
            "requires a single instance",
            f"run `{checked.set_command} {_COUNT}=1`",
            place="instance_group.count",
        )


def check_ranks_of_instances(
    checked: Checked, model: str, world_size: int | None
) -> Iterator[Finding]:
    """Yield a finding if an instance does not have exactly one GPU for each engine rank."""
    gpus = checked.repository.value(model, f"parameters.{_GPUS}")
    if not gpus or world_size is None:
        return
    groups = gpus.split(";")
    mismatched = [group for group in groups if group.count(",") + 1 != world_size]
    if mismatched:
        yield checked.finding(
            "error",
            model,
            f"{_GPUS} contains the group {mismatched[0]}, but the engine's world size is "
            f"{world_size}",
            f'run `{checked.set_command} "{_GPUS}={_example_groups(world_size, len(groups))}"`',
            place=f"parameters.{_GPUS}",
        )


def _example_groups(world_size: int, num_instances: int) -> str:
    """Return an example `gpu_device_ids` with `world_size` consecutive GPUs per instance."""
    return ";".join(
        ",".join(str(each * world_size + gpu) for gpu in range(world_size))
        for each in range(num_instances)
    )
