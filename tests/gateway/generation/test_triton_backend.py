"""Test the requests to the model `tensorrt_llm` of a Triton server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.triton_backend import plan_embedding, plan_message

INPUTS = ("input_ids", "input_lengths", "request_output_len", "embedding_bias")


def plan(*inputs: str, **fields: Any) -> Any:
    core = ModelInfo("tensorrt_llm", inputs=frozenset(inputs))
    basic = {"input_ids": (1, 2), "max_new_tokens": 3, "num_return_sequences": 1}
    return plan_message(core, {**basic, **fields}, pad_id=0, vocab_size=4)


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
        {"lora_name": "a"},
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
