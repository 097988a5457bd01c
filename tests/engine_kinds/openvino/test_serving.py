"""The default limits of OpenVINO engines, for the machine's memory."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest

from tests.samples.builds import ENGINE
from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.engine_kinds.cpu_memory import CpuHost, EngineSize
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository

GIB = 1 << 30
# An engine with the shape of Llama 3.1 8B and int8 weights.
LLAMA_8B = dataclasses.replace(
    ENGINE, max_position_embeddings=131_072, details=EngineSize(8 * GIB, 512, 65_536)
)


def limits(memory_gib: int | None, engine=LLAMA_8B, **options: Any) -> tuple[int, int, int]:
    """Return the number of sequences, the tokens per sequence and the tokens in the KV cache."""
    host = CpuHost(memory_gib * GIB) if memory_gib else None
    values = plan_repository("m", engine, ServingOptions(host=host, **options)).parameters
    return tuple(
        int(values[name])
        for name in ("max_num_seqs", "max_seq_len", "max_tokens_in_paged_kv_cache")
    )


@pytest.mark.parametrize(
    ("memory_gib", "expected"),
    [
        (None, (64, 131_072, 131_072)),
        (64, (64, 131_072, 131_072)),
        (16, (64, 49_568, 49_568)),
        (10, (64, 7_072, 7_072)),
        (8, (64, 2_048, 2_048)),
    ],
)
def test_cache_fits_into_the_memory(memory_gib: int | None, expected: tuple[int, ...]) -> None:
    assert limits(memory_gib) == expected


def test_sequences_of_a_short_context_may_use_all_of_it() -> None:
    engine = dataclasses.replace(LLAMA_8B, max_position_embeddings=4096)
    assert limits(64, engine) == (64, 4096, 32_768)
    assert limits(10, engine) == (64, 4096, 7_072)


def test_set_limits_are_kept() -> None:
    assert limits(16, max_seq_len=100_000) == (64, 100_000, 100_000)
    assert limits(16, parameters={"max_seq_len": "60000"}) == (64, 60_000, 60_000)
    assert limits(16, max_batch_size=16) == (16, 49_568, 49_568)
    cache = {"max_tokens_in_paged_kv_cache": "1024"}
    assert limits(16, parameters=cache) == (64, 131_072, 1024)


def test_engine_of_unknown_size_gets_the_usual_limits() -> None:
    assert limits(8, dataclasses.replace(LLAMA_8B, details=None)) == (64, 131_072, 131_072)


@pytest.mark.parametrize("layout", [each for each in get_args(Layout) if each != "embedding"])
def test_limits_are_described_in_every_layout(layout: Layout) -> None:
    options = ServingOptions(host=CpuHost(16 * GIB), layout=layout)
    repository = plan_repository("m", LLAMA_8B, options)
    describe = find_kind("openvino").serving.describe_limits
    assert describe(LLAMA_8B, repository.parameters, None) == (
        "64 sequences, 256 tokens per step, 49,568 tokens in the KV cache, "
        "49,568 tokens per sequence"
    )


@pytest.mark.parametrize(
    ("host", "parameters", "shown"),
    [
        (CpuHost(64 * GIB, num_threads=16), {}, ", 16 threads"),
        (CpuHost(64 * GIB, num_threads=1), {}, ", 1 thread"),
        (CpuHost(64 * GIB, num_threads=16), {"num_threads": "4"}, ", 4 threads"),
        (None, {}, " in the KV cache"),
    ],
)
def test_threads_are_those_of_the_setting_or_of_the_machine(
    host: CpuHost | None, parameters: dict[str, str], shown: str
) -> None:
    repository = plan_repository("m", LLAMA_8B, ServingOptions(host=host, parameters=parameters))
    describe = find_kind("openvino").serving.describe_limits
    assert describe(LLAMA_8B, repository.parameters, host).endswith(shown)
