"""Compute the template parameters of engines that serve a checkpoint without a build.

Engine arguments that correspond to a parameter in NVIDIA's templates have their own entries in
`config.pbtxt`. An additional entry contains all other arguments as a JSON object.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.engines.engine_arguments import Arguments, ArgumentTable

# Limits of engines without a build if `find_card_limits` returns none, for example because the GPU
# is unknown.
MAX_BATCH_SIZE = 256
MAX_NUM_TOKENS = 8192
# Maps `config.pbtxt` entries to template parameters if the names differ.
_RENAMED = {"gpt_model_path": "engine_dir"}
# `config.pbtxt` entries that must have a value.
_REQUIRED = ("max_num_seqs", "max_seq_len", "max_num_tokens", "max_beam_width")
# Parameters that enable priorities or timeouts in Triton's queue. If one of these parameters is
# set, the `tensorrt_llm` model must have a single instance (see `front_ends`).
_ORDER = ("priority_levels", "default_timeout_microseconds")
# The number of streams that one instance can serve if each stream produces a token every 19 ms
# (measured with benchmarks/streams.py). With 256 streams, more than four instances do not improve
# performance.
_STREAMS_PER_INSTANCE = 64
_MAX_INSTANCES = 4


def read_arguments(table: ArgumentTable, parameters: Mapping[str, str]) -> Arguments:
    """Return the engine arguments that correspond to `parameters`.

    Raise `BadInput` if a parameter is invalid.
    """
    try:
        return table.read(parameters)
    except ValueError as error:
        raise _invalid_arguments(table, str(error)) from error


def values_of(table: ArgumentTable, arguments: Arguments) -> dict[str, str]:
    """Return the template parameters that correspond to the engine's `arguments`.

    Raise `BadInput` if an argument with its own parameter is invalid, or if a required argument is
    null.
    """
    entries = table.write(arguments)
    read_arguments(table, entries)
    for entry in _REQUIRED:
        if entry in table.rows and entry not in entries:
            raise _invalid_arguments(table, f"{table.rows[entry][0]} is null")
    values = {_RENAMED.get(entry, entry): value for entry, value in entries.items()}
    return values | {"triton_max_batch_size": values["max_num_seqs"]}


def _invalid_arguments(table: ArgumentTable, why: str) -> BadInput:
    return BadInput(
        "The engine arguments are not valid.",
        why=why,
        next_step=f"correct the value of {table.rest}",
    )


def requested_limits(options: ServingOptions) -> dict[str, int]:
    """Return the serving limits that the user set, keyed by template parameter."""
    limits = {
        "max_seq_len": options.max_seq_len,
        "max_num_seqs": options.max_batch_size,
        "max_num_tokens": options.max_num_tokens,
    }
    return {name: value for name, value in limits.items() if value is not None}


def front_ends(overrides: Mapping[str, str], max_num_seqs: int) -> dict[str, str]:
    """Return the parameters that configure the instances of `tensorrt_llm` and the text models.

    The result contains `bls_instance_count`, `tensorrt_llm_instance_count` and
    `instances_share_engine`. `max_num_seqs` is the engine's maximum number of sequences.

    Several instances of `tensorrt_llm` can share a single engine. With several engines, each engine
    has exactly one instance. A queue with priorities or timeouts requires a single instance,
    because instances that share an engine dequeue requests independently.
    """
    num_instances = min(math.ceil(max_num_seqs / _STREAMS_PER_INSTANCE), _MAX_INSTANCES)
    is_one_engine = count_gpu_groups(overrides.get("gpu_device_ids", "")) == 1
    has_order = any(int(overrides.get(name) or 0) for name in _ORDER)
    is_shared = is_one_engine and not has_order
    return {
        "bls_instance_count": str(num_instances),
        "tensorrt_llm_instance_count": str(num_instances if is_shared else 1),
        "instances_share_engine": str(is_shared).lower(),
    }


def count_gpu_groups(gpu_device_ids: str) -> int:
    """Return the number of GPU groups in `gpu_device_ids`, for example 2 for "0,1;2,3".

    Each engine runs on one group of GPUs.
    """
    return gpu_device_ids.count(";") + 1


def count_gpus(arguments: Mapping[str, Any]) -> int:
    """Return the product of an engine's tensor, pipeline and context parallel sizes."""
    kinds = ("tensor", "pipeline", "context")
    return math.prod(int(arguments.get(f"{kind}_parallel_size") or 1) for kind in kinds)
