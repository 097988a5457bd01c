"""Tests of histograms, traces, prefixes, conversations, batches and words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.workloads.histogram import Histogram, find_histogram
from trtllm_serve_cli.bench.workloads.identity import Identity
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.bench.workloads.prefixes import MultiTurn, SharedPrefix
from trtllm_serve_cli.bench.workloads.spec import RequestSpec, Workload
from trtllm_serve_cli.bench.workloads.trace import BLOCK_TOKENS, read_trace
from trtllm_serve_cli.bench.workloads.words import RandomWords
from trtllm_serve_cli.errors import BadInput

LENGTHS = TokenNormDist(8, 2, 4, 1)
WORKLOADS = [
    find_histogram("example"),
    SharedPrefix(LENGTHS, 16, 2),
    MultiTurn(LENGTHS, 3, 0.5),
    Identity(),
    RandomWords(),
]


def _draw(workload: Workload, num_requests: int, seed: int = 0) -> list[RequestSpec]:
    return workload.draw(num_requests, 100, np.random.default_rng(seed))


def _plain(specs: list[RequestSpec]) -> list[object]:
    return [
        (
            spec.input_ids.tolist(),
            spec.num_output_tokens,
            spec.text,
            [(t.input_ids.tolist(), t.num_output_tokens, t.think_s) for t in spec.turns],
        )
        for spec in specs
    ]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: type(workload).__name__)
def test_same_seed_draws_the_same_requests(workload: Workload) -> None:
    assert _plain(_draw(workload, 5)) == _plain(_draw(workload, 5))
    assert json.dumps(workload.describe())


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: type(workload).__name__)
def test_ids_are_in_the_vocabulary(workload: Workload) -> None:
    for spec in _draw(workload, 20):
        assert spec.input_ids.size == 0 or 0 <= spec.input_ids.min() <= spec.input_ids.max() < 100


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1, max_size=5))
def test_lengths_lie_in_buckets_that_have_counts(pairs: list[tuple[int, int]]) -> None:
    counts = (*(count for _, count in pairs), 1)
    buckets = (*((low, low + 2) for low, _ in pairs), (60, 60))
    drawn = Histogram(buckets, counts).draw(50, np.random.default_rng(0))
    used = [bucket for bucket, count in zip(buckets, counts, strict=True) if count]
    assert all(any(low <= length <= high for low, high in used) for length in drawn)


def test_upstream_histogram_is_limited_by_its_smaller_side() -> None:
    assert find_histogram("example").num_available == 742


def test_histogram_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "h.json"
    one = {"buckets": [[5, 5]], "counts": [2]}
    file.write_text(json.dumps({"a_ip": one, "a_op": one}))
    assert [s.input_ids.size for s in _draw(find_histogram("a", file), 2)] == [5, 5]


def test_descriptions_distinguish_histogram_files(tmp_path: Path) -> None:
    described = []
    for name, length in (("a", 5), ("b", 5), ("b", 6)):
        one = {"buckets": [[length, length]], "counts": [2]}
        file = tmp_path / name
        file.write_text(json.dumps({"k_ip": one, "k_op": one}))
        described.append(find_histogram("k", file).describe())
    a, b, changed = described
    assert a | {"histogram_file": "b"} == b
    assert b["digest"] != changed["digest"]
    assert find_histogram("example").describe()["histogram_file"] is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a_ip": {"buckets": [[1, 2]], "counts": [1]}}, "key 'a' was not found"),
        ({"a_ip": {"buckets": [[1, 2]]}}, "cannot be read"),
        ({"a_ip": {"buckets": [[2, 1]], "counts": [1]}}, "cannot be read"),
        ({"a_ip": {"buckets": [[1, 2]], "counts": [0]}}, "cannot be read"),
        ({"a_ip": {"buckets": [[1, math.inf]], "counts": [1]}}, "cannot be read"),
        ([], "cannot be read"),
    ],
)
def test_invalid_histogram_is_rejected(tmp_path: Path, content: object, words: str) -> None:
    file = tmp_path / "h.json"
    file.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=words):
        find_histogram("a", file)


def test_shared_prefix_does_not_depend_on_the_seed() -> None:
    drawn = _draw(SharedPrefix(LENGTHS, 16, 1), 3) + _draw(SharedPrefix(LENGTHS, 16, 1), 3, seed=1)
    assert len({tuple(spec.input_ids[:16].tolist()) for spec in drawn}) == 1
    assert len({tuple(spec.input_ids.tolist()) for spec in drawn}) == 6


def test_number_of_prefixes_is_as_requested() -> None:
    drawn = _draw(SharedPrefix(LENGTHS, 16, 3), 60)
    assert len({tuple(spec.input_ids[:16].tolist()) for spec in drawn}) == 3


def test_conversation_has_its_turns() -> None:
    (spec,) = _draw(MultiTurn(LENGTHS, 4, 1.0), 1)
    assert len(spec.turns) == 3
    assert all(turn.think_s > 0 and turn.input_ids.size for turn in spec.turns)


def test_identity_always_sends_the_same_batch() -> None:
    one, other = _draw(Identity(), 1) + _draw(Identity(), 1, seed=1)
    assert one.input_ids.shape == (8, 8)
    assert one.input_ids.tolist() == other.input_ids.tolist()


def _trace(tmp_path: Path, *lines: dict[str, object]) -> Path:
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_trace_blocks_with_the_same_hash_have_the_same_ids(tmp_path: Path) -> None:
    file = _trace(
        tmp_path,
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]},
        {"timestamp": 250, "input_length": 1030, "output_length": 6, "hash_ids": [7, 8, 10]},
    )
    trace = read_trace(file)
    first, second = _draw(trace, 2)
    shared = 2 * BLOCK_TOKENS
    assert trace.times_s == (0.0, 0.25)
    assert (first.input_ids.size, second.input_ids.size) == (1100, 1030)
    assert first.input_ids[:shared].tolist() == second.input_ids[:shared].tolist()
    assert first.input_ids[shared:1030].tolist() != second.input_ids[shared:].tolist()
    assert [first.num_output_tokens, second.num_output_tokens] == [5, 6]


def test_trace_requests_are_sorted_and_truncated(tmp_path: Path) -> None:
    file = _trace(
        tmp_path,
        {"timestamp": 90, "input_length": 30, "output_length": 2},
        {"timestamp": 10, "input_length": 5, "output_length": 1},
    )
    trace = read_trace(file, 20)
    assert [spec.input_ids.size for spec in _draw(trace, 2)] == [5, 20]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"input_length": 1, "output_length": 1}, "timestamp field is missing"),
        ({"timestamp": -1, "input_length": 1, "output_length": 1}, "timestamp field must be"),
        ({"timestamp": 0, "input_length": "1", "output_length": 1}, "input_length field must be"),
        ({"timestamp": 0, "input_length": 1}, "output_length field is missing"),
        ({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}, "hash_ids"),
    ],
)
def test_invalid_trace_line_is_rejected_with_its_number(
    tmp_path: Path, line: dict[str, object], words: str
) -> None:
    good = {"timestamp": 0, "input_length": 1, "output_length": 1}
    file = _trace(tmp_path, good, line)
    with pytest.raises(BadInput) as refused:
        read_trace(file)
    assert refused.value.what == f"The entry at {file}:2 is invalid."
    assert words in refused.value.why


def test_empty_trace_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is empty"):
        read_trace(_trace(tmp_path))
