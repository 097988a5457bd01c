"""Compute parameter values for the kinds that serve a checkpoint directly.

In `config.pbtxt`, each argument for the engine's package that has an upstream parameter is an
entry. A single further entry contains all other arguments as a JSON object.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.runtime.engines.engine_arguments import Arguments, ArgumentTable

# The engine's package has its own defaults for all arguments except these limits.
MAX_BATCH_SIZE = 256
MAX_NUM_TOKENS = 8192
# Entries of `config.pbtxt` that have another name than their parameter: entry -> parameter.
_RENAMED = {"gpt_model_path": "engine_dir"}
# If one of these parameters is set, Triton's queue is no longer first come, first served.
_ORDER = ("priority_levels", "default_timeout_microseconds")
# Four instances can send 256 streams with a token every 19 ms each (benchmarks/streams.py).
_NUM_FRONT_ENDS = 4


def values_of(table: ArgumentTable, arguments: Arguments) -> dict[str, str]:
    """Return the parameters that correspond to these arguments for the engine's package."""
    values = {_RENAMED.get(entry, entry): value for entry, value in table.write(arguments).items()}
    return values | {"triton_max_batch_size": values["max_num_seqs"]}


def requested_limits(options: ServingOptions) -> dict[str, int]:
    """Return the limits in `options` that are set, by parameter name."""
    limits = {
        "max_seq_len": options.max_seq_len,
        "max_num_seqs": options.max_batch_size,
        "max_num_tokens": options.max_num_tokens,
    }
    return {name: value for name, value in limits.items() if value is not None}


def front_ends(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters for the instances of `tensorrt_llm`.

    A single engine has several instances as front ends. With several engines, each has one
    instance. A queue with priorities or timeouts also requires a single instance, because instances
    that share an engine take requests independently of each other.
    """
    is_one_engine = count_gpu_groups(overrides.get("gpu_device_ids", "")) == 1
    has_order = any(int(overrides.get(name) or 0) for name in _ORDER)
    if is_one_engine and not has_order:
        count, is_shared = str(_NUM_FRONT_ENDS), "true"
    else:
        count, is_shared = "1", "false"
    return {"tensorrt_llm_instance_count": count, "instances_share_engine": is_shared}


def count_gpu_groups(gpu_device_ids: str) -> int:
    """Return the number of GPU groups, one per engine: for example, 2 for "0,1;2,3"."""
    return gpu_device_ids.count(";") + 1


def count_gpus(arguments: Mapping[str, Any]) -> int:
    """Return the world size that the arguments set, which is one rank per GPU."""
    kinds = ("tensor", "pipeline", "context")
    return math.prod(int(arguments.get(f"{kind}_parallel_size") or 1) for kind in kinds)
