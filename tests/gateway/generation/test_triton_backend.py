"""Test the requests to the model `tensorrt_llm` of a Triton server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.gateway.fakes import LetterTokenizer
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.text_stream import TextSequence
from trtllm_serve_cli.gateway.generation.triton_backend import EmbeddingReader, ResponseReader
from trtllm_serve_cli.gateway.generation.triton_request import plan_embedding, plan_message
from trtllm_serve_cli.runtime.embedding import decode_vector
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder

BASIC = {"input_ids": (1, 2), "max_new_tokens": 3, "num_return_sequences": 1}
INPUTS = ("input_ids", "input_lengths", "request_output_len", "embedding_bias")


def plan(*inputs: str, **fields: Any) -> Any:
    core = ModelInfo("tensorrt_llm", inputs=frozenset(inputs))
    return plan_message(core, {**BASIC, **fields}, pad_id=0, vocab_size=4)


def respond(**outputs: Any) -> Any:
    """Return a `ModelInferResponse`."""
    response = service_pb2.ModelInferResponse()
    for name, rows in outputs.items():
        array = np.array(rows)
        datatype, dtype = ("FP32", np.float32) if array.dtype.kind == "f" else ("INT32", np.int32)
        response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        response.raw_output_contents.append(array.astype(dtype).tobytes())
    return response


def test_bias_is_a_row_of_the_vocabulary() -> None:
    message = plan(*INPUTS, logit_bias=((1, 2.5), (3, -100.0)))
    sent = {
        each.name: (each.datatype, list(each.shape), content)
        for each, content in zip(message.inputs, message.raw_input_contents, strict=True)
    }
    datatype, shape, content = sent["embedding_bias"]
    assert (datatype, shape) == ("FP32", [1, 4])
    assert np.frombuffer(content, dtype=np.float32).tolist() == [0, 2.5, 0, -100]


def test_a_model_without_the_input_rejects_the_bias() -> None:
    with pytest.raises(ApiError) as rejected:
        plan(*INPUTS[:3], logit_bias=((1, 2.5),))
    assert (rejected.value.status, rejected.value.code) == (400, "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.5},
        {"num_top_log_probs": 1},
        {"return_prompt_log_probs": True},
    ],
)
def test_fields_without_an_input_are_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as rejected:
        plan(*INPUTS, **fields)
    assert rejected.value.status == 400
    assert "require an engine worker" in rejected.value.message


def test_fields_that_are_not_set_do_not_matter() -> None:
    unset = {"logit_bias": (), "num_top_log_probs": 0, "return_prompt_log_probs": False}
    assert {each.name for each in plan(*INPUTS, **unset).inputs} == set(INPUTS[:3])


def test_an_embedding_is_requested_with_token_ids_only() -> None:
    message = plan_embedding("mine", {"input_ids": (1, 2), "max_new_tokens": 0})
    (sent,) = message.inputs
    assert (message.model_name, sent.name, sent.datatype, list(sent.shape)) == (
        "mine", "input_ids", "INT32", [1, 2],
    )  # fmt: skip
    assert np.frombuffer(message.raw_input_contents[0], dtype=np.int32).tolist() == [1, 2]


@pytest.mark.parametrize("has_prompt", [False, True])
def test_sequences_of_one_response_are_separated(has_prompt: bool) -> None:
    """The shorter sequence is padded. Log probabilities have no values for the prompt."""
    core = ModelInfo("tensorrt_llm", is_decoupled=not has_prompt)
    reader = ResponseReader(core, {**BASIC, "num_return_sequences": 2}, 7)
    prompt = [1, 2] if has_prompt else []
    response = respond(
        output_ids=[[[*prompt, 65, 66, 67], [*prompt, 68, -1, -1]]],
        sequence_length=[[len(prompt) + 3, len(prompt) + 1]],
        output_log_probs=[[[-0.5, -1.0, -1.5], [-2.0, 0.0, 0.0]]],
    )
    first, second = reader.read(response)
    assert (first.sequence_index, first.token_ids) == (0, (65, 66, 67))
    assert (second.sequence_index, second.token_ids) == (1, (68,))
    assert (first.log_probs, second.log_probs) == ((-0.5, -1.0, -1.5), (-2.0,))
    assert [each.finish_reason for each in reader.finish(None)] == ["length", "stop"]


def test_response_without_outputs_has_no_updates() -> None:
    reader = ResponseReader(ModelInfo("tensorrt_llm"), BASIC, 7)
    assert reader.read(respond()) == []


def read_tokens(stop_words: tuple[tuple[int, ...], ...], *steps: list[int]) -> list[SequenceUpdate]:
    """Return the updates of one sequence with these tokens in each response."""
    reader = ResponseReader(ModelInfo("tensorrt_llm"), {**BASIC, "stop_words": stop_words}, 7)
    updates = [
        update
        for ids in steps
        for update in reader.read(respond(output_ids=[[ids]], sequence_length=[[len(ids)]]))
    ]
    return updates + reader.finish(None)


@pytest.mark.parametrize("steps", [([65], [59]), ([65], [66], [59]), ([65, 59],), ([65, 59], [])])
def test_stop_token_is_in_the_last_update(steps: tuple[list[int], ...]) -> None:
    *updates, last = read_tokens(((58,), (59,)), *steps)
    assert (last.token_ids[-1], last.finish_reason) == (59, "stop")
    assert not any(59 in each.token_ids or each.finish_reason for each in updates)
    sequence = TextSequence(
        0, StreamDecoder(LetterTokenizer().decode), stop_token_ids=frozenset({58, 59})
    )
    deltas = [sequence.push(each) for each in (*updates, last)]
    assert "".join(each.text for each in deltas) in ("A", "AB")
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", 59)


def test_stop_token_does_not_end_a_sequence_that_continues() -> None:
    updates = read_tokens(((59,),), [65], [59], [66])
    assert [(each.token_ids, each.finish_reason) for each in updates] == [
        ((65,), None), ((59,), None), ((66,), None), ((), "length"),
    ]  # fmt: skip


def test_longer_stop_words_are_not_held_back() -> None:
    updates = read_tokens(((65, 59),), [65], [59])
    assert [(each.token_ids, each.finish_reason) for each in updates] == [
        ((65,), None), ((59,), None), ((), "stop"),
    ]  # fmt: skip


def test_embedding_is_the_only_update() -> None:
    reader = EmbeddingReader(7)
    assert reader.read(respond(embedding=[[0.5, 1.0]])) == []
    (update,) = reader.finish(None)
    assert (update.request_id, update.finish_reason) == (7, "stop")
    assert decode_vector(update.embedding).tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("error", "is_rejected"),
    [(None, False), ("out of memory", False), ("max_seq_len is 512, but …", True)],
)
def test_missing_embedding_is_an_error(error: str | None, is_rejected: bool) -> None:
    (update,) = EmbeddingReader(7).finish(error)
    assert (bool(update.error), update.rejected) == (True, is_rejected)
