"""Requests of upstream's client programs, and the checks that those programs make.

`docs/guides/upstream-clients.md` lists the requests of each program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.e2e.shallow import REPETITION_PENALTY, find_last_word
from tests.e2e.upstream import (
    PROMPT,
    Stop,
    as_tensors,
    core_inputs,
    names,
    new_tokens,
    stop_inputs,
    stop_text_inputs,
    stream,
    text,
    text_inputs,
)
from trtllm_serve_cli.client.endpoint import Endpoint

QUESTION = "The capital of France is"
TEXT_MODELS = pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
TRUE = np.array([[True]])


def test_each_streamed_response_has_the_new_tokens_only(endpoint: Endpoint) -> None:
    results = stream(endpoint, "tensorrt_llm", core_inputs(PROMPT, 16, streaming=True))
    # A busy server can send several tokens in one response.
    numbers = [int(each.as_numpy("sequence_length").item()) for each in results]
    assert [each.as_numpy("output_ids").shape for each in results] == [(1, 1, n) for n in numbers]
    assert sum(numbers) == 16


def test_a_whole_answer_starts_with_the_prompt(endpoint: Endpoint) -> None:
    """`--num-return-sequences` uses the stream without streaming, and the prompt is included."""
    inputs = core_inputs(PROMPT, 4, streaming=False)
    (result,) = stream(endpoint, "tensorrt_llm", inputs)
    assert (new_tokens([result])[: len(PROMPT)], len(new_tokens([result]))) == (PROMPT, 16)


def test_every_response_has_only_the_requested_outputs(endpoint: Endpoint) -> None:
    outputs = ["output_ids", "sequence_length"]
    inputs = core_inputs(PROMPT, 4, streaming=True)
    results = stream(endpoint, "tensorrt_llm", inputs, outputs=outputs)
    assert results and all(names(each) == set(outputs) for each in results)


@pytest.mark.parametrize("stop", [Stop(stop_inputs()), Stop()], ids=["stop", "cancel"])
def test_a_stopped_request_has_fewer_tokens(endpoint: Endpoint, stop: Stop) -> None:
    inputs = core_inputs(PROMPT, 1000, streaming=True)
    del inputs["end_id"]
    results = stream(endpoint, "tensorrt_llm", inputs, request_id="1", stop=stop)
    failures = {each.status() for each in results if isinstance(each, Exception)}
    answers = [each for each in results if not isinstance(each, Exception)]
    assert failures <= {"StatusCode.CANCELLED"} and 0 < len(new_tokens(answers)) < 1000


def test_log_probs_are_returned_with_the_tokens(endpoint: Endpoint) -> None:
    inputs = {**core_inputs(PROMPT, 3, streaming=True), "return_log_probs": TRUE}
    results = stream(endpoint, "tensorrt_llm", inputs)
    cum = [float(each.as_numpy("cum_log_probs")[0, 0]) for each in results]
    steps = [float(each.as_numpy("output_log_probs").sum()) for each in results]
    assert cum == pytest.approx(np.cumsum(steps).tolist())


def test_several_sequences_have_an_index_each(endpoint: Endpoint) -> None:
    inputs = core_inputs(PROMPT, 8, streaming=False)
    inputs |= {"num_return_sequences": np.array([[3]], np.int32)}
    inputs |= {"runtime_top_k": np.array([[50]], np.int32)}
    results = stream(endpoint, "tensorrt_llm", inputs)
    assert sorted(int(each.as_numpy("sequence_index")[0, 0]) for each in results) == [0, 1, 2]


def test_random_ids_of_the_benchmark_get_one_response_each(endpoint: Endpoint) -> None:
    """The benchmark draws ids from all of INT32, matches request ids and reads output 0."""
    random = np.random.default_rng(420)
    arrived: list[Any] = []
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        client.start_stream(lambda result, error: arrived.append(error or result))
        for index in range(8):
            inputs = {
                "input_ids": random.integers(0, 2**31 - 1, (1, 20 + index), np.int32),
                "input_lengths": np.array([[20 + index]], np.int32),
                "request_output_len": np.array([[4]], np.int32),
                "pad_id": np.array([[0]], np.int32),
                "end_id": np.array([[1]], np.int32),
            }
            client.async_stream_infer("tensorrt_llm", as_tensors(inputs), request_id=str(index))
        client.stop_stream()
    responses = {
        each.get_response().id: (
            each.get_response().outputs[0].name,
            len(each.as_numpy("output_ids").shape),
        )
        for each in arrived
    }
    assert (len(arrived), responses) == (8, {str(index): ("output_ids", 3) for index in range(8)})


@TEXT_MODELS
def test_streamed_text_is_what_follows_the_prompt(endpoint: Endpoint, model: str) -> None:
    streamed = stream(endpoint, model, text_inputs([QUESTION], 12, streaming=True))
    whole = stream(endpoint, model, text_inputs([QUESTION], 12, streaming=False))
    assert (len(whole), text(whole)) == (1, QUESTION + text(streamed))


@TEXT_MODELS
def test_text_ends_at_a_stop_word(endpoint: Endpoint, model: str) -> None:
    inputs = text_inputs([QUESTION], 12, streaming=True)
    inputs |= {"repetition_penalty": np.array([[REPETITION_PENALTY]], np.float32)}
    free = text(stream(endpoint, model, inputs))
    word = find_last_word(free)
    inputs |= {"stop_words": np.array([[f" {word}", " city"]], object)}
    assert text(stream(endpoint, model, inputs)) == free[: free.index(word) + len(word)]


@TEXT_MODELS
def test_a_stopped_request_has_less_text(endpoint: Endpoint, model: str) -> None:
    inputs = text_inputs([QUESTION], 1000, streaming=True)
    inputs |= {"min_tokens": np.array([[1000]], np.int32)}
    stop = Stop(stop_text_inputs())
    results = stream(endpoint, model, inputs, request_id="1", stop=stop)
    assert [each for each in results if isinstance(each, Exception)] == []
    # The response to the stop request has no outputs.
    pieces = [each for each in results if names(each)]
    assert text(pieces) and len(pieces) == len(results) - 1 < 1000


@TEXT_MODELS
def test_text_has_no_bad_words(endpoint: Endpoint, model: str) -> None:
    inputs = text_inputs([QUESTION], 12, streaming=True)
    inputs |= {"repetition_penalty": np.array([[REPETITION_PENALTY]], np.float32)}
    word = find_last_word(text(stream(endpoint, model, inputs)))
    inputs |= {"bad_words": np.array([[f" {word}", " city"]], object)}
    answer = text(stream(endpoint, model, inputs))
    assert answer and word not in answer and "city" not in answer


@TEXT_MODELS
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
def test_rows_of_a_batch_have_an_index(endpoint: Endpoint, model: str, streaming: bool) -> None:
    """`--batch-inputs`; each prompt has one likely end, because rounding depends on batch size."""
    prompts = ["1 2 3 4 5 6", "2 + 2 =", QUESTION]
    inputs = text_inputs(prompts, 3, streaming=streaming)
    results = stream(endpoint, model, inputs, outputs=["text_output", "batch_index"])
    rows = [
        text([each for each in results if each.as_numpy("batch_index")[0, 0] == row])
        for row in range(len(prompts))
    ]
    alone = [
        stream(endpoint, model, text_inputs([each], 3, streaming=streaming)) for each in prompts
    ]
    assert rows == [text(each) for each in alone] and len(set(rows)) == len(rows)


@TEXT_MODELS
def test_beams_are_strings_of_one_response(endpoint: Endpoint, model: str) -> None:
    inputs = text_inputs([QUESTION], 8, streaming=False)
    inputs |= {"beam_width": np.array([[2]], np.int32)}
    (result,) = stream(endpoint, model, inputs, outputs=["text_output"])
    beams = [each.decode() for each in result.as_numpy("text_output")]
    assert len(set(beams)) == 2 and all(each.startswith(QUESTION) for each in beams)


@TEXT_MODELS
def test_text_of_several_sequences_has_their_index(endpoint: Endpoint, model: str) -> None:
    inputs = text_inputs([QUESTION], 5, streaming=False)
    inputs |= {"num_return_sequences": np.array([[2]], np.int32)}
    results = stream(endpoint, model, inputs, outputs=["text_output", "sequence_index"])
    texts = {int(each.as_numpy("sequence_index")[0, 0]): text([each]) for each in results}
    assert texts.keys() == {0, 1} and texts[0] == texts[1]


@TEXT_MODELS
def test_text_follows_the_guide(endpoint: Endpoint, model: str) -> None:
    inputs = text_inputs([QUESTION], 12, streaming=True)
    inputs |= {"guided_decoding_guide_type": np.array([["regex"]], object)}
    inputs |= {"guided_decoding_guide": np.array([["[0-9]{3}"]], object)}
    answer = text(stream(endpoint, model, inputs))
    assert answer.isdecimal() and len(answer) == 3


@TEXT_MODELS
def test_text_comes_with_perf_metrics(endpoint: Endpoint, model: str) -> None:
    inputs = text_inputs([QUESTION], 3, streaming=False) | {"return_perf_metrics": TRUE}
    outputs = ["text_output", "arrival_time_ns", "last_token_time_ns", "acceptance_rate"]
    (result,) = stream(endpoint, model, inputs, outputs=outputs)
    times = [int(result.as_numpy(name)[0][0]) for name in outputs[1:3]]
    assert names(result) == set(outputs) and 0 < times[0] < times[1]
