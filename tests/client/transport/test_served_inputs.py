"""Inputs with the names and types in the model's configuration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trtllm_serve_cli.client.generate import GenerateRequest, RawTensor
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.client.transport.served_inputs import ServedInput, plan_served_inputs
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.runtime.lora.safetensors import narrow_to_bfloat16


def info_of(model: str, version: str) -> ModelInfo:
    tensors = load_contracts(version)[model].inputs
    return ModelInfo(
        "ensemble",
        inputs=frozenset(each.name for each in tensors),
        required_inputs=frozenset(each.name for each in tensors if not each.optional),
        unsigned_inputs=frozenset(each.name for each in tensors if each.type == "TYPE_UINT32"),
    )


def test_inputs_of_the_gpt_layout_have_its_names_and_types() -> None:
    request = GenerateRequest("hi", max_tokens=3, stream=False, seed=5, stop_words=("a",))
    assert plan_served_inputs(info_of("gpt/ensemble", "0.6"), request) == {
        "text_input": ServedInput("BYTES", "hi"),
        "max_tokens": ServedInput("UINT32", 3),
        "random_seed": ServedInput("UINT64", 5),
        "stop_words": ServedInput("BYTES", ("a",)),
        "bad_words": ServedInput("BYTES", ("",)),
    }


def test_model_that_does_not_accept_text_is_refused() -> None:
    info = ModelInfo("preprocessing", inputs=frozenset({"QUERY"}))
    with pytest.raises(BadInput, match="preprocessing does not accept text") as raised:
        plan_served_inputs(info, GenerateRequest("hi"))
    assert raised.value.next_step.endswith("for example -m ensemble")


def test_word_lists_are_omitted_if_they_are_optional() -> None:
    served = plan_served_inputs(info_of("ensemble", ""), GenerateRequest("hi", max_tokens=3))
    assert not {"stop_words", "bad_words"} & served.keys()
    assert served["max_tokens"] == ServedInput("INT32", 3)


def test_finish_reason_is_requested_if_the_model_can_return_it() -> None:
    request = GenerateRequest("hi")
    requested = {"return_finish_reason": ServedInput("BOOL", True)}
    llmapi = replace(info_of("llmapi", ""), name="tensorrt_llm")
    assert requested.items() <= plan_served_inputs(llmapi, request).items()
    assert not requested.keys() & plan_served_inputs(info_of("ensemble", ""), request).keys()


def test_adapter_has_the_data_type_of_the_engine() -> None:
    halves = np.array([[[1, 2]]], dtype="<f2")
    request = GenerateRequest(
        "hi",
        max_tokens=3,
        lora_task_id=1,
        lora_weights=RawTensor((1, 1, 2), halves.tobytes()),
        lora_config=RawTensor((1, 1, 3), bytes(12)),
    )
    info = replace(info_of("ensemble", ""), lora_datatype="BF16")
    weights = narrow_to_bfloat16(halves.astype(np.float32))
    assert plan_served_inputs(info, request)["lora_weights"] == ServedInput(
        "BF16", RawTensor((1, 1, 2), weights.tobytes())
    )
