"""Test the remarks about a result."""

from __future__ import annotations

from dataclasses import replace

from tests.samples.bench_results import make_result
from trtllm_serve_cli.bench.report.tables import remarks


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
