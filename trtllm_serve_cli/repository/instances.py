"""Several instances of one engine, as upstream's backend places them on GPUs.

`gpu_device_ids` has a group of GPUs for each instance, such as 0,1;2,3, and upstream wants exactly
as many groups as instances. Source: docs/llama_multi_instance.md of
triton-inference-server/tensorrtllm_backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.repository.findings import Checked, Finding

_COUNT = "tensorrt_llm_instance_count"
_GPUS = "gpu_device_ids"


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


def _count_groups(gpu_device_ids: str) -> int:
    return gpu_device_ids.count(";") + 1
