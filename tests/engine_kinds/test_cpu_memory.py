"""The KV cache that fits into a machine's memory."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.engine_kinds import cpu_memory
from trtllm_serve_cli.engine_kinds.cpu_memory import (
    CpuHost,
    EngineSize,
    count_cache_tokens,
    count_required_bytes,
    find_host,
    kv_bytes_per_token,
)

SMOLLM2_135M = EngineSize(weight_bytes=92_485_340, kv_heads=180, kv_values=11_520)
GIB = 1 << 30


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [
        # `kv_cache_size_in_bytes` of OpenVINO GenAI 2026.4.1, divided by the number of tokens.
        (SMOLLM2_135M, 13_680),
        (EngineSize(weight_bytes=606_882_237, kv_heads=256, kv_values=32_768), 37_888),
    ],
)
def test_8_bit_cache_has_the_size_that_openvino_reports(size: EngineSize, num_bytes: int) -> None:
    assert kv_bytes_per_token(size, CpuHost(GIB)) == num_bytes


def test_values_of_other_caches_have_16_bits() -> None:
    assert kv_bytes_per_token(SMOLLM2_135M, CpuHost(GIB, has_8bit_cache=False)) == 2 * 11_520


def test_cache_uses_half_of_the_remaining_memory() -> None:
    room = 100_000 * 13_680 * 2
    host = CpuHost(SMOLLM2_135M.weight_bytes + GIB + room)
    assert count_cache_tokens(SMOLLM2_135M, host) == 100_000
    one_less = CpuHost(host.memory_bytes - 1)
    assert count_cache_tokens(SMOLLM2_135M, one_less) == 100_000 - 32


def test_cache_of_a_small_machine_has_a_minimum_size() -> None:
    assert count_cache_tokens(SMOLLM2_135M, CpuHost(GIB)) == 2048


def test_required_memory_includes_the_smallest_cache() -> None:
    required = count_required_bytes(SMOLLM2_135M, CpuHost(GIB))
    assert required == SMOLLM2_135M.weight_bytes + GIB + 2048 * 13_680


@pytest.mark.parametrize(("limit", "num_threads"), [(None, 8), (1.5, 2), (16.0, 8)])
def test_threads_follow_the_limit_of_the_container(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, num_threads: int
) -> None:
    monkeypatch.setattr(cpu_memory, "count_physical_cores", lambda: 8)
    monkeypatch.setattr(cpu_memory, "read_cpu_limit", lambda: limit)
    assert find_host().num_threads == num_threads


def test_memory_is_that_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_memory, "read_memory_limit", lambda: None)
    total = find_host().memory_bytes
    for limit, memory in ((GIB // 4, GIB // 4), (total + 1, total)):
        monkeypatch.setattr(cpu_memory, "read_memory_limit", lambda limit=limit: limit)
        assert find_host().memory_bytes == memory
