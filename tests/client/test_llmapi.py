"""Inputs for the model of the llmapi layout."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.llmapi import (
    LLMAPI_MODEL,
    name_inputs,
    returns_prompt,
    shape_input,
)
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.client.transport.tensors import INPUTS
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.contract import load_contracts

USUAL = ("text_input", "max_tokens", "stream", "stop_words", "return_num_output_tokens")


def test_inputs_of_other_models_are_unchanged() -> None:
    assert name_inputs("mine", USUAL, USUAL) == {name: name for name in USUAL}
    assert shape_input("mine", USUAL, [1, 3]) == [1, 3]


def test_renames_inputs_and_removes_the_batch_dimension() -> None:
    assert name_inputs(LLMAPI_MODEL, USUAL, ()) == {
        "text_input": "text_input",
        "max_tokens": "sampling_param_max_tokens",
        "stream": "streaming",
        "stop_words": "sampling_param_stop",
    }
    assert shape_input(LLMAPI_MODEL, (), [1, 3]) == [3]


def test_names_and_types_match_the_contract() -> None:
    types = {each.name: each.type for each in load_contracts()["llmapi"].inputs}
    supported = [name for name in INPUTS if _is_supported(name)]
    for ours, theirs in name_inputs(LLMAPI_MODEL, supported, ()).items():
        assert types[theirs] == "TYPE_" + INPUTS[ours].replace("BYTES", "STRING")


def _is_supported(name: str) -> bool:
    try:
        return bool(name_inputs(LLMAPI_MODEL, [name], ()))
    except BadInput:
        return False


def test_rejects_inputs_missing_from_the_layout() -> None:
    with pytest.raises(BadInput) as raised:
        name_inputs(LLMAPI_MODEL, ["beam_width"], ())
    assert str(raised.value) == (
        "tensorrt_llm does not support beam_width.\n"
        "Why: the llmapi layout does not have a tensor for beam_width\n"
        "Next: omit beam_width, or import the model with --layout inflight"
    )


def test_uses_the_names_of_older_versions() -> None:
    inputs = {each.name for each in load_contracts("0.19.0")["ensemble"].inputs}
    assert name_inputs("ensemble", ["text_input", "seed", "min_tokens"], inputs) == {
        "text_input": "text_input",
        "seed": "random_seed",
        "min_tokens": "min_length",
    }


def test_omits_inputs_without_which_the_response_is_useful() -> None:
    inputs = {each.name for each in load_contracts("0.9.0")["ensemble"].inputs}
    requested = ["text_input", "exclude_input_in_output", "return_num_input_tokens"]
    assert name_inputs("ensemble", requested, inputs) == {"text_input": "text_input"}


@pytest.mark.parametrize(
    ("version", "why", "next_step"),
    [
        (
            "0.11.0",
            "the engine was built with TensorRT-LLM 0.11.0, but num_return_sequences was added in "
            "0.14",
            "omit num_return_sequences, or build the engine with TensorRT-LLM 0.14 or later",
        ),
        (
            "",
            "the model's configuration does not contain this input",
            "omit num_return_sequences",
        ),
    ],
)
def test_rejects_an_input_that_the_model_lacks(version: str, why: str, next_step: str) -> None:
    with pytest.raises(BadInput, match="ensemble does not support num_return_seq") as raised:
        name_inputs("ensemble", ["num_return_sequences"], {"text_input"}, version)
    assert (raised.value.why, raised.value.next_step) == (why, next_step)


@pytest.mark.parametrize(
    ("version", "stream", "expected"),
    [("0.15.0", False, True), ("0.15.0", True, False), ("0.16.0", False, False)],
)
def test_older_text_models_return_the_prompt(version: str, stream: bool, expected: bool) -> None:
    inputs = frozenset(each.name for each in load_contracts(version)["ensemble"].inputs)
    info = ModelInfo("ensemble", inputs=inputs)
    assert returns_prompt(info, GenerateRequest("Hi", stream=stream)) is expected
