from __future__ import annotations

import dataclasses
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.transport.tensors import (
    INPUTS,
    decode_array,
    decode_raw,
    encode_raw,
    parse_pieces,
    plan_inputs,
    plan_parameters,
)
from trtllm_serve_cli.errors import BadInput


def test_every_field_of_a_request_is_a_tensor() -> None:
    fields = {field.name for field in dataclasses.fields(GenerateRequest)}
    assert fields - {"lora_name", "request_id", "stop_after_ms", "history"} == set(INPUTS)


def test_unset_fields_are_not_sent() -> None:
    request = GenerateRequest(
        "hi", return_num_input_tokens=False, return_num_output_tokens=False, stream=False
    )
    assert plan_inputs(request) == {
        "text_input": "hi",
        "max_tokens": 200,
        "stream": False,
        "exclude_input_in_output": True,
    }


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("max_tokens", 2**31, "INT32"),
        ("max_tokens", "5", "whole number"),
        ("max_tokens", True, "whole number"),
        ("seed", -1, "from 0 to 18446744073709551615"),
        ("temperature", float("nan"), "finite number"),
        ("temperature", 1e39, "finite number"),
        ("top_p", "x", "finite number"),
        ("stop_words", "and", "list of valid UTF-8 strings"),
        ("stop_words", (1,), "list of valid UTF-8 strings"),
        ("text_input", "\udcff", "valid UTF-8"),
        ("stream", 1, "true or false"),
        ("guided_decoding_guide", {}, "valid UTF-8"),
        ("lora_weights", "x", "a tensor"),
        ("stop_after_ms", -1, "whole number"),
    ],
)
def test_invalid_value_names_its_tensor(name: str, value: Any, takes: str) -> None:
    request = dataclasses.replace(GenerateRequest("hi"), **{name: value})
    with pytest.raises(BadInput, match=f"{name} cannot be") as raised:
        plan_inputs(request)
    assert takes in raised.value.why


def test_rejects_lora_name_that_is_not_text() -> None:
    with pytest.raises(BadInput, match="lora_name cannot be 5"):
        plan_parameters(GenerateRequest("hi", lora_name=5))  # type: ignore[arg-type]


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_strings_round_trip(words: list[str]) -> None:
    shape, raw = encode_raw("BYTES", tuple(words))
    assert (shape, decode_raw("BYTES", raw)) == ([1, len(words)], words)


@given(st.integers(0, 2**64 - 1))
def test_seed_round_trips(seed: int) -> None:
    assert decode_raw("UINT64", encode_raw("UINT64", seed)[1]) == [seed]


def test_replaces_invalid_utf_8() -> None:
    assert decode_raw("BYTES", b"\x02\0\0\0a\xff") == ["a\ufffd"]


def test_truncated_string_is_an_error() -> None:
    with pytest.raises(struct.error):
        decode_raw("BYTES", b"\x05\0\0\0a")


def test_response_without_text_has_no_pieces() -> None:
    assert parse_pieces(GenerateRequest("hi"), {"num_output_tokens": [1]}, 1.0) == []


@pytest.mark.parametrize(
    "outputs",
    [
        {"text_output": [1]},
        {"text_output": ["a"], "logprobs": ["{"]},
        {"text_output": ["a"], "logprobs": ["[{}]"]},
        {"text_output": ["a", "b"], "logprobs": ["[]"]},
    ],
    ids=["text", "JSON", "step", "number of sequences"],
)
def test_invalid_outputs_are_an_error(outputs: dict[str, list[Any]]) -> None:
    with pytest.raises(ValueError):
        parse_pieces(GenerateRequest("hi", return_log_probs=True), outputs, 1.0)


def test_second_beam_pair_follows_the_first() -> None:
    outputs = {"text_output": ["a", "b"], "sequence_index": [1]}
    pieces = parse_pieces(GenerateRequest("hi"), outputs, 1.0)
    assert [piece.sequence_index for piece in pieces] == [2, 3]


def test_prompt_is_removed_from_models_that_return_it() -> None:
    outputs = {"text_output": ["The end", "Other"]}
    request = GenerateRequest("The ", stream=False)
    pieces = parse_pieces(request, outputs, 0.0, returns_prompt=True)
    assert [piece.text for piece in pieces] == ["end", "Other"]


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16"])
def test_decodes_arrays_of_every_logits_type(datatype: str) -> None:
    values = np.array([[1.0, -2.5, 0.0]], np.float32)
    content = values.astype("<f2" if datatype == "FP16" else "<f4").tobytes()
    if datatype == "BF16":
        content = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    decoded = decode_array(datatype, [1, 3], content)
    assert np.array_equal(decoded, values)


def test_array_of_another_type_is_rejected() -> None:
    with pytest.raises(ValueError, match="the data type is INT8 instead of FP16, FP32 or BF16"):
        decode_array("INT8", [1], bytes(1))


def test_array_of_the_wrong_size_is_rejected() -> None:
    with pytest.raises(ValueError, match="cannot reshape"):
        decode_array("FP32", [2, 3], bytes(4))


def test_logits_are_returned_only_if_requested() -> None:
    outputs = {"text_output": ["hi"], "context_logits": [np.zeros((1, 1))]}
    (piece,) = parse_pieces(GenerateRequest("x", return_context_logits=True), outputs, 0.0)
    assert list(piece.logits) == ["context_logits"]
    (piece,) = parse_pieces(GenerateRequest("x"), outputs, 0.0)
    assert piece.logits == {}
