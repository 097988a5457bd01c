"""Compute the serving values of the kinds that serve a checkpoint directly.

Arguments of the engine's package that have an upstream parameter are entries of `config.pbtxt`. All
other arguments are one entry, a JSON object.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.runtime.engines.engine_arguments import Arguments, ArgumentTable

# The default limits; all other defaults are the package's.
MAX_BATCH_SIZE = 256
MAX_NUM_TOKENS = 8192
# Entries whose parameters have other names.
_RENAMED = {"gpt_model_path": "engine_dir"}
# Parameters that give Triton's queue another order than first come, first served.
_ORDER = ("priority_levels", "default_timeout_microseconds")
# Four keep up with 256 streams of a token every 19 ms (benchmarks/streams.py).
_NUM_FRONT_ENDS = 4


def values_of(table: ArgumentTable, arguments: Arguments) -> dict[str, str]:
    """Return the parameters that stand for these arguments of the engine's package."""
    values = {_RENAMED.get(entry, entry): value for entry, value in table.write(arguments).items()}
    return values | {"triton_max_batch_size": values["max_num_seqs"]}


def requested_limits(options: ServingOptions) -> dict[str, int]:
    """Return the requested limits by parameter."""
    limits = {
        "max_seq_len": options.max_seq_len,
        "max_num_seqs": options.max_batch_size,
        "max_num_tokens": options.max_num_tokens,
    }
    return {name: value for name, value in limits.items() if value is not None}


def front_ends(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the instances of an engine on a GPU: several front ends of one engine.

    Each of several engines has one instance. A queue with an order also requires a single instance.
    """
    is_one_engine = count_gpu_groups(overrides.get("gpu_device_ids", "")) == 1
    has_order = any(int(overrides.get(name) or 0) for name in _ORDER)
    if is_one_engine and not has_order:
        count, is_shared = str(_NUM_FRONT_ENDS), "true"
    else:
        count, is_shared = "1", "false"
    return {"tensorrt_llm_instance_count": count, "instances_share_engine": is_shared}


def count_gpu_groups(gpu_device_ids: str) -> int:
    """Return the number of groups in text such as 0,1;2,3, one per engine."""
    return gpu_device_ids.count(";") + 1


def count_gpus(arguments: Mapping[str, Any]) -> int:
    """Return the world size of these arguments; each rank has a GPU."""
    kinds = ("tensor", "pipeline", "context")
    return math.prod(int(arguments.get(f"{kind}_parallel_size") or 1) for kind in kinds)
