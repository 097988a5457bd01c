"""Describe the memory and threads of a machine that runs engines on its CPU.

The memory determines the KV cache size of OpenVINO engines.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from trtllm_serve_cli.runtime.cgroup import read_cpu_limit, read_memory_limit
from trtllm_serve_cli.runtime.engines.openvino.threads import (
    choose_num_threads,
    count_physical_cores,
)

# Estimated memory for the server's processes, in addition to the weights and the KV cache.
_SERVER_BYTES = 1 << 30
# The fraction of the remaining memory that the KV cache may use. The other half is for activations,
# other models and programs, and a second copy of the model that computes prompt log probabilities.
_CACHE_FRACTION = 0.5
# Minimum KV cache size in tokens, even if the machine has too little memory.
_MIN_TOKENS = 2048
_TOKENS_PER_BLOCK = 32


@dataclass(frozen=True, slots=True)
class CpuHost:
    """A machine that runs engines on its CPU.

    `memory_bytes` is the machine's memory, or a container's memory limit if it is lower. If
    `has_8bit_cache` is set, OpenVINO stores the KV cache in 8 bits by default. `num_threads` is the
    number of threads that an engine starts by default, or None if it is unknown.
    """

    memory_bytes: int
    has_8bit_cache: bool = True
    num_threads: int | None = None


@dataclass(frozen=True, slots=True)
class EngineSize:
    """The sizes that determine an engine's memory usage.

    For each token, the KV cache stores `kv_heads` key and value vectors, which contain `kv_values`
    numbers in total. Both counts include all layers.
    """

    weight_bytes: int
    kv_heads: int
    kv_values: int


def find_host() -> CpuHost:
    """Return the properties of this machine."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    num_cores = count_physical_cores()
    return CpuHost(
        memory_bytes=min(total, read_memory_limit() or total),
        has_8bit_cache=platform.machine().lower() in ("x86_64", "amd64"),
        num_threads=choose_num_threads(read_cpu_limit(), num_cores) or num_cores,
    )


def count_required_bytes(size: EngineSize, host: CpuHost) -> int:
    """Return the bytes for the weights, the server's processes and the smallest KV cache."""
    cache_bytes = _MIN_TOKENS * kv_bytes_per_token(size, host)
    return size.weight_bytes + _SERVER_BYTES + int(cache_bytes)


def count_cache_tokens(size: EngineSize, host: CpuHost) -> int:
    """Return the maximum KV cache size, in tokens.

    The size is a whole number of blocks that fits into `_CACHE_FRACTION` of the remaining memory,
    but at least `_MIN_TOKENS`.
    """
    free_bytes = host.memory_bytes - size.weight_bytes - _SERVER_BYTES
    num_tokens = int(free_bytes * _CACHE_FRACTION / kv_bytes_per_token(size, host))
    return max(num_tokens // _TOKENS_PER_BLOCK * _TOKENS_PER_BLOCK, _MIN_TOKENS)


def kv_bytes_per_token(size: EngineSize, host: CpuHost) -> float:
    """Return the KV cache size per token in bytes, including the scales of 8-bit values.

    OpenVINO scales keys by channel and values by token. Each scale has a zero point, and both are
    32-bit numbers. A channel has one scale per block of 32 keys, which adds a quarter of a byte to
    each element of a key. A value vector has one scale, which adds 8 bytes. Averaged over keys and
    values, the overhead is an eighth of a byte per element plus 4 bytes per vector. OpenVINO GenAI
    2026.4.1 reported the same sizes.
    """
    if not host.has_8bit_cache:
        return 2.0 * size.kv_values
    return 1.125 * size.kv_values + 4 * size.kv_heads
