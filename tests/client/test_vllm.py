"""Inputs and outputs of models in the vllm layout."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.client.transport.served_inputs import (
    plan_served_inputs,
    plan_served_parameters,
)
from trtllm_serve_cli.client.transport.tensors import parse_pieces
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.contract import load_contracts

TYPES = {
    each.name: each.type.removeprefix("TYPE_").replace("STRING", "BYTES")
    for each in load_contracts()["vllm"].inputs
}
INFO = ModelInfo("mine", inputs=frozenset(TYPES))
# The vLLM backend of 2023 has only these inputs.
OLD = ModelInfo("mine", inputs=frozenset({"text_input", "stream", "sampling_parameters"}))


def plan(info: ModelInfo = INFO, **options: Any) -> dict[str, Any]:
    served = plan_served_inputs(info, GenerateRequest("hi", **options))
    assert {name: each.datatype for name, each in served.items()} == {
        name: TYPES[name] for name in served
    }
    return {name: each.value for name, each in served.items()}


def test_sampling_parameters_are_json_in_one_input() -> None:
    inputs = plan(max_tokens=3, top_k=2, stop_words=("a", "b"), seed=1, lora_name="mine")
    assert json.loads(inputs.pop("sampling_parameters")) == {
        "max_tokens": 3, "top_k": 2, "stop": ["a", "b"], "seed": 1, "lora_name": "mine",
    }  # fmt: skip
    assert inputs == {
        "text_input": "hi",
        "stream": True,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    assert plan_served_parameters(INFO, GenerateRequest("hi", lora_name="mine")) == {}


def test_inputs_that_an_older_backend_lacks_are_omitted() -> None:
    assert plan(OLD).keys() == OLD.inputs


def test_log_probs_are_requested_and_parsed() -> None:
    inputs = plan(return_log_probs=True)
    assert json.loads(inputs["sampling_parameters"])["logprobs"] == 0
    assert inputs["return_logprobs"] and inputs["return_cumulative_logprob"]
    step = {"7": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}}
    outputs = {
        "text_output": ["a", "b"],
        "cumulative_logprob": [-0.5, -2.0],
        "logprobs": [json.dumps([step]), "null"],
        "num_output_tokens": [1, 2],
        "finish_reason": ["None", "length"],
    }
    first, second = parse_pieces(GenerateRequest("hi", return_log_probs=True), outputs, 0.0)
    assert (first.cum_log_prob, first.output_log_probs, first.num_output_tokens) == (
        -0.5, (-0.5,), 3,
    )  # fmt: skip
    assert (second.cum_log_prob, second.output_log_probs) == (-2.0, ())
    assert (first.finish_reason, second.finish_reason) == (None, "length")


@pytest.mark.parametrize("info", [INFO, OLD])
def test_rejects_inputs_missing_from_the_layout(info: ModelInfo) -> None:
    assert "beam_width" not in plan(info, beam_width=1)
    with pytest.raises(BadInput) as raised:
        plan(info, beam_width=2)
    assert str(raised.value) == (
        "mine does not support beam_width.\n"
        "Why: the vllm layout does not have an input or sampling parameter for beam_width\n"
        "Next: omit beam_width, or import the model with --layout inflight"
    )
    if info is OLD:
        with pytest.raises(BadInput, match="mine does not support return_log_probs"):
            plan(info, return_log_probs=True)
