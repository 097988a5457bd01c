"""Test the descriptions of a benchmark and the remarks about its result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.samples.bench_results import make_result
from trtllm_serve_cli.bench.report.tables import describe_amount, remarks
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.bench.workloads.prefixes import MultiTurn


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_requests": 1}, "1 request"),
        ({"num_requests": 2}, "2 requests"),
        ({"num_requests": 1, "workload": MultiTurn(TokenNormDist())}, "1 conversation"),
        ({"duration_s": 1.0, "repeat": 2}, "1 s of requests, 2 times"),
    ],
    ids=["one", "two", "conversation", "duration"],
)
def test_amount_is_described(changes: dict[str, Any], words: str) -> None:
    assert describe_amount(replace(make_result().settings, **changes)) == words


def test_responses_without_a_token_are_counted() -> None:
    result = make_result()
    assert not any("without generating" in each for each in remarks(result))
    (run, *others) = result.runs
    records = tuple(
        replace(each, chunk_s=(), chunk_tokens=()) if each.index < 3 else each
        for each in run.records
    )
    result = replace(result, runs=(replace(run, records=records), *others))
    assert f"ended 3 of {result.summary.num_completed} responses without" in "\n".join(
        remarks(result)
    )
