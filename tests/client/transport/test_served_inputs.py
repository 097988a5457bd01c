"""Inputs with the names and types in the model's configuration."""

from __future__ import annotations

from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.client.transport.served_inputs import ServedInput, plan_served_inputs
from trtllm_serve_cli.repository.model.contract import load_contracts


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


def test_word_lists_are_omitted_if_they_are_optional() -> None:
    served = plan_served_inputs(info_of("ensemble", ""), GenerateRequest("hi", max_tokens=3))
    assert not {"stop_words", "bad_words"} & served.keys()
    assert served["max_tokens"] == ServedInput("INT32", 3)
