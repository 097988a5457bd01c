from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.model.slo import parse_objective
from trtllm_serve_cli.bench.stats.request_times import is_good, itl_s, tpot_s

RECORD = RequestRecord(0, 0.0, 1.0, 6.0, 10, (2.0, 3.0, 5.0), (1, 1, 1))


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=50).map(sorted))
def test_tpot_is_the_mean_gap_of_one_token_responses(times_s: list[float]) -> None:
    record = replace(RECORD, chunk_s=tuple(times_s), chunk_tokens=(1,) * len(times_s))
    gaps = itl_s(record)
    assert tpot_s(record) == pytest.approx(math.fsum(gaps) / len(gaps))


def test_tpot_needs_two_tokens() -> None:
    with pytest.raises(ValueError, match="two tokens"):
        tpot_s(replace(RECORD, chunk_s=(1.0,), chunk_tokens=(1,)))


@pytest.mark.parametrize(
    ("objective", "is_met"),
    [("tpot<1us", True), ("itl:p99<1us", True), ("queue<1s", False), ("latency<1us", False)],
)
def test_without_a_second_token_no_gap_is_too_long(objective: str, is_met: bool) -> None:
    single = replace(RECORD, chunk_s=(1.0,), chunk_tokens=(1,))
    assert is_good(single, [parse_objective(objective)]) == is_met
