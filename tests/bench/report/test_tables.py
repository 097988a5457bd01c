"""Test the descriptions of a benchmark and the remarks about its result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.samples.bench_results import make_result
from trtllm_serve_cli.bench.report.tables import describe_amount, point_rows, remarks
from trtllm_serve_cli.bench.run.sampling import ServerSample
from trtllm_serve_cli.bench.workloads.dataset import Dataset
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
    empty = [replace(each, chunk_s=(), chunk_tokens=()) for each in run.records[:3]]
    ramp = replace(empty[0], is_ramp=True)
    records = (ramp, *empty, *run.records[3:])
    result = replace(result, runs=(replace(run, records=records), *others))
    assert f"ended 3 of {result.summary.num_completed} responses without" in "\n".join(
        remarks(result)
    )


@pytest.mark.parametrize(
    ("models", "loads"),
    [
        ([("a", "tensorrt_llm"), ("b", "tensorrt_llm")], ["a: 20 requests/s", "b: 20 requests/s"]),
        (
            [("a", "tensorrt_llm"), ("a", "ensemble")],
            ["a (tensorrt_llm): 20 requests/s", "a (ensemble): 20 requests/s"],
        ),
        ([(None, "x"), (None, "y")], ["x: 20 requests/s", "y: 20 requests/s"]),
        ([("a", "x"), ("a", "x")], ["20 requests/s", "20 requests/s"]),
    ],
    ids=["imported", "served", "not imported", "same"],
)
def test_points_of_different_models_have_different_names(
    models: list[tuple[str | None, str]], loads: list[str]
) -> None:
    results = []
    for imported, name in models:
        result = make_result(model=name, num_requests=1)
        (model,) = result.models
        results.append(replace(result, models=(replace(model, imported_model=imported),)))
    assert [row[0] for row in point_rows(results)] == loads


@pytest.mark.parametrize("num_left_out", [0, 2])
def test_skipped_entries_are_reported(num_left_out: int) -> None:
    workload = Dataset("data", (5, 6, 7), (1, 1, 1), num_left_out)
    notes = [each for each in remarks(make_result(workload=workload)) if "skipped" in each]
    assert notes == [
        "2 of 5 data set entries were skipped, because their prompts are empty or too long, or "
        "their conversations have no answer."
    ] * (num_left_out == 2)


@pytest.mark.parametrize("num_answered", [0, 1])
def test_server_without_metrics_is_reported(num_answered: int) -> None:
    result = make_result()
    broken = ServerSample(0, 101.0, error="No server publishes metrics at 127.0.0.1:1.")
    run = replace(result.runs[0], samples=(*result.runs[0].samples[:num_answered], broken))
    notes = remarks(replace(result, runs=(run,)))
    assert [each for each in notes if "sampled" in each] == [
        "The metrics of 127.0.0.1:8001 were not sampled: "
        "No server publishes metrics at 127.0.0.1:1."
    ] * (not num_answered)
