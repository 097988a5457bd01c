"""Requests with several prompts as rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tests.fakes.triton.answers import Outputs, Request
from tests.fakes.triton.server import FakeTriton, list_inputs
from trtllm_serve_cli.client.ask import stream
from trtllm_serve_cli.client.generate import Completion, GenerateRequest, Piece
from trtllm_serve_cli.client.model_info import ModelInfo, fetch_model_config
from trtllm_serve_cli.client.row_batch import (
    RowBatch,
    check_num_rows,
    merge_requests,
    summarize_rows,
)
from trtllm_serve_cli.errors import BadInput, RequestFailed

PROMPTS = ("a", "é", "c")


def follow_rows(request: Request) -> Iterator[Outputs]:
    """Answer each row with its prompt twice, starting with the last row."""
    for _ in range(2):
        for index, prompt in reversed([*enumerate(request.inputs["text_input"])]):
            yield {"text_output": [prompt], "batch_index": [index], "num_output_tokens": [1]}


def merge_rows(request: Request) -> Iterator[Outputs]:
    """Answer all rows in one response, each with the prompt and two beams."""
    rows = request.inputs["text_input"]
    yield {
        "text_output": [f"{prompt}{beam}" for prompt in rows for beam in (1, 2)],
        "cum_log_probs": [float(number) for number in range(2 * len(rows))],
        "batch_index": [*range(len(rows))],
        "sequence_index": [0] * len(rows),
        "num_output_tokens": [2] * len(rows),
    }


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton(answer=follow_rows) as fake:
        yield fake


def _send(triton: FakeTriton, request: GenerateRequest) -> list[Completion]:
    info = fetch_model_config(triton.endpoint, "ensemble")
    rows = RowBatch(triton.endpoint, info, PROMPTS)
    return summarize_rows(list(stream(rows, "ensemble", request)), len(PROMPTS), 0.0)


def test_rows_are_one_request(triton: FakeTriton) -> None:
    request = GenerateRequest("", max_tokens=5, stop_words=("x", "y"), seed=7)
    done = _send(triton, request)
    assert [(each.text, each.num_output_tokens) for each in done] == [
        ("aa", 2),
        ("éé", 2),
        ("cc", 2),
    ]
    (sent,) = triton.received
    assert (sent["text_input"], sent["max_tokens"], sent["seed"]) == ([*PROMPTS], [5] * 3, [7] * 3)
    assert sent["stop_words"] == ["x", "y"] * 3


def test_one_response_can_contain_all_rows(triton: FakeTriton) -> None:
    triton.answer = merge_rows
    done = _send(triton, GenerateRequest("", beam_width=2, stream=False, return_log_probs=True))
    assert [each.texts for each in done] == [("a1", "a2"), ("é1", "é2"), ("c1", "c2")]
    assert [each.cum_log_probs for each in done] == [(0, 1), (2, 3), (4, 5)]


def test_prompt_of_each_row_is_removed(triton: FakeTriton) -> None:
    """Up to TensorRT-LLM 0.15, responses begin with the prompt."""
    triton.answer = merge_rows
    has_no_exclusion = set(list_inputs("tensorrt_llm_bls")) - {"exclude_input_in_output"}
    triton.input_names = tuple(has_no_exclusion)
    done = _send(triton, GenerateRequest("", stream=False))
    assert [each.texts for each in done] == [("1", "2")] * 3


@pytest.mark.parametrize("outputs", [{}, {"batch_index": [3]}, {"batch_index": [-1]}])
def test_response_without_the_index_of_its_row_is_invalid(
    triton: FakeTriton, outputs: Outputs
) -> None:
    triton.answer = lambda request: iter([{"text_output": ["a"], **outputs}])
    with pytest.raises(RequestFailed, match="is invalid") as raised:
        _send(triton, GenerateRequest(""))
    assert "batch_index" in raised.value.why


def test_time_limit_for_the_text_ends_all_rows() -> None:
    pieces = [Piece("a", 1.0, batch_index=1), Piece("", 2.0, was_stopped=True)]
    first, second = summarize_rows(pieces, 2, 0.5)
    assert (first.texts, first.was_stopped, first.latency_s) == ((), True, 1.5)
    assert (second.texts, second.was_stopped) == (("a",), True)


def test_requests_with_the_same_options_are_merged() -> None:
    requests = [GenerateRequest(prompt, 9) for prompt in PROMPTS]
    assert merge_requests(requests) == requests
    assert merge_requests([]) == []


def test_requests_with_other_options_are_refused() -> None:
    first = GenerateRequest("a", 9)
    other = dataclasses.replace(first, max_tokens=8, seed=1)
    with pytest.raises(BadInput, match="Request 2 in the file") as raised:
        merge_requests([first, other])
    assert "differ in max_tokens and seed" in raised.value.why


def test_error_in_a_line_is_raised() -> None:
    with pytest.raises(BadInput, match="Line 2"):
        merge_requests([GenerateRequest("a"), BadInput("Line 2: wrong.")])


def test_number_of_rows_is_limited() -> None:
    check_num_rows(ModelInfo("m", max_batch_size=2), 2)
    with pytest.raises(BadInput, match="at most 2 prompts per request, but the file has 3"):
        check_num_rows(ModelInfo("m", max_batch_size=2), 3)


def test_model_without_batching_accepts_one_row() -> None:
    check_num_rows(ModelInfo("m", max_batch_size=0), 1)
    with pytest.raises(BadInput, match="only one prompt per request, but the file has 2"):
        check_num_rows(ModelInfo("m", max_batch_size=0), 2)


def test_rows_without_indices_are_in_order(triton: FakeTriton) -> None:
    def answer(request: Request) -> Iterator[Outputs]:
        yield {"text_output": [f"{prompt}!" for prompt in request.inputs["text_input"]]}

    triton.answer = answer
    request = GenerateRequest("", max_tokens=5, stream=False)
    assert [each.text for each in _send(triton, request)] == ["a!", "é!", "c!"]
