"""From an engine's updates to the tensors of responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.runtime.engine import PerfMetrics, SequenceUpdate
from trtllm_serve_cli.runtime.requests.responses import RowResponseBuilder, merge_responses
from trtllm_serve_cli.runtime.triton.tensors import Array, RowRequest


def _row(batch_index: int = 0, **fields: Any) -> RowRequest:
    fields = {"beam_width": 1, "num_return_sequences": 1, "input_ids": (7,), **fields}
    return RowRequest(fields, batch_index, 0, True, True, True)


def _as_lists(tensors: dict[str, Array]) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def _response(row: RowRequest, *tokens: int) -> dict[str, Array]:
    response = RowResponseBuilder(row, 0, is_streaming=False).add(
        SequenceUpdate(1, 0, tokens, "length")
    )
    assert response is not None
    return response


def test_every_response_has_performance_metrics() -> None:
    builder = RowResponseBuilder(_row(return_perf_metrics=True), 5, is_streaming=True)
    response = builder.add(SequenceUpdate(1, 0, (8,), perf=PerfMetrics(6, 4, 2, 10, 20, 30, 3, 4)))
    assert response is not None
    assert _as_lists(response) | {"output_ids": None} == {
        "output_ids": None,
        "sequence_length": [[1]],
        "batch_index": [[0]],
        "sequence_index": [[0]],
        "num_input_tokens": [[1]],
        "num_output_tokens": [[1]],
        "kv_cache_alloc_total_blocks": [[6]],
        "kv_cache_alloc_new_blocks": [[4]],
        "kv_cache_reused_blocks": [[2]],
        "arrival_time_ns": [[5]],
        "first_scheduled_time_ns": [[10]],
        "first_token_time_ns": [[20]],
        "last_token_time_ns": [[30]],
        "acceptance_rate": [[0.75]],
        "total_accepted_draft_tokens": [[3]],
        "total_draft_tokens": [[4]],
    }


def test_end_early_returns_unsent_tokens() -> None:
    builder = RowResponseBuilder(_row(num_return_sequences=2), 0, is_streaming=False)
    builder.add(SequenceUpdate(1, 0, (8, 9), "stop"))
    builder.add(SequenceUpdate(1, 1, (5,)))
    (response,) = builder.end_early()
    assert (response["output_ids"].tolist(), response["sequence_index"].tolist()) == (
        [[[5]]],
        [[1]],
    )
    assert builder.is_done and not builder.end_early()


def test_end_early_returns_nothing_for_a_stream() -> None:
    builder = RowResponseBuilder(_row(), 0, is_streaming=True)
    builder.add(SequenceUpdate(1, 0, (8,)))
    assert builder.end_early() == []


def test_merges_rows_and_sequences_into_one_response() -> None:
    row = _row(1, num_return_sequences=2)
    builder = RowResponseBuilder(row, 0, is_streaming=False)
    response = [builder.add(SequenceUpdate(1, each, (each + 1,), "stop")) for each in (1, 0)]
    merged = merge_responses([*(each for each in response if each), _response(_row(0), 4, 5, 6)])
    assert _as_lists(merged) == {
        "output_ids": [[[4, 5, 6], [0, 0, 0]], [[1, 0, 0], [2, 0, 0]]],
        "sequence_length": [[3, 0], [1, 1]],
        "batch_index": [[0], [1]],
        "sequence_index": [[0], [0]],
        "num_input_tokens": [[1], [1]],
        "num_output_tokens": [[3], [2]],
    }


@pytest.mark.parametrize("requesting", [0, 1])
def test_output_of_one_row_is_zero_for_the_other(requesting: int) -> None:
    rows = [_row(row, return_log_probs=row == requesting) for row in (0, 1)]
    response = []
    for row in rows:
        update = SequenceUpdate(1, 0, (4, 5), "length", (-0.5, -0.25), -0.75)
        response += [RowResponseBuilder(row, 0, is_streaming=False).add(update)]
    merged = merge_responses([each for each in response if each])
    log_probs, cum = np.zeros((2, 1, 2)), np.zeros((2, 1))
    log_probs[requesting], cum[requesting] = (-0.5, -0.25), -0.75
    assert merged["output_ids"].tolist() == [[[4, 5]], [[4, 5]]]
    assert merged["output_log_probs"].tolist() == log_probs.tolist()
    assert merged["cum_log_probs"].tolist() == cum.tolist()
    assert merged["cum_log_probs"].dtype == np.float32


def test_merging_keeps_the_types() -> None:
    one = _response(_row(0, return_perf_metrics=True), 4)
    merged = merge_responses([one, _response(_row(1, return_perf_metrics=True), 5)])
    assert {name: array.dtype for name, array in merged.items()} == {
        name: array.dtype for name, array in one.items()
    }
    assert merged["arrival_time_ns"].dtype == np.int64
