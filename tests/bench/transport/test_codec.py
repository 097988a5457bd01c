from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests.fakes.triton.answers import tokens
from tests.fakes.triton.over_grpc import encode_response, encode_stream_response
from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport import codec
from trtllm_serve_cli.bench.workloads.spec import RequestSpec
from trtllm_serve_cli.repository.model.contract import load_contracts

_MODEL = ServedModel(
    "127.0.0.1:1", "tensorrt_llm", "1", "2.51.0", True, 8, 500,
    inputs=frozenset(each.name for each in load_contracts()["tensorrt_llm"].inputs),
)  # fmt: skip
# Up to TensorRT-LLM 0.13, requests cannot exclude the prompt from the response.
_OLD_MODEL = replace(
    _MODEL,
    inputs=frozenset(each.name for each in load_contracts("0.13")["tensorrt_llm"].inputs),
    returns_prompt=True,
)
_OPTIONS = codec.RequestOptions()
_STREAM_OPTIONS = codec.RequestOptions(stream=True)
_SPEC = RequestSpec(np.array([5, 6, 7], np.int32), 20)
_REQUEST = service_pb2.ModelInferRequest(model_name="tensorrt_llm", id="1")


def _inputs(encoded: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    request = service_pb2.ModelInferRequest.FromString(encoded)
    return {
        tensor.name: (tensor.datatype, list(tensor.shape), content)
        for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def test_encode_request_sets_an_exact_length_without_echo() -> None:
    assert _inputs(codec.encode_request(_SPEC, _MODEL, "1", _OPTIONS)) == {
        "input_ids": ("INT32", [1, 3], np.array([5, 6, 7], np.int32).tobytes()),
        "input_lengths": ("INT32", [1, 1], np.int32(3).tobytes()),
        "request_output_len": ("INT32", [1, 1], np.int32(20).tobytes()),
        "exclude_input_in_output": ("BOOL", [1, 1], b"\x01"),
    }


def test_encode_request_omits_inputs_that_the_model_lacks() -> None:
    inputs = _inputs(codec.encode_request(_SPEC, _OLD_MODEL, "1", _OPTIONS))
    assert sorted(inputs) == ["input_ids", "input_lengths", "request_output_len"]


def test_encode_request_uses_the_required_inputs_and_the_types_of_the_model() -> None:
    contract = load_contracts("0.6")["gpt/tensorrt_llm"]
    model = replace(
        _MODEL,
        inputs=frozenset(each.name for each in contract.inputs),
        required_inputs=frozenset(each.name for each in contract.inputs if not each.optional),
        unsigned_inputs=frozenset(
            each.name for each in contract.inputs if each.type == "TYPE_UINT32"
        ),
    )
    inputs = _inputs(codec.encode_request(_SPEC, model, "1", _OPTIONS))
    assert {name: (datatype, content) for name, (datatype, _, content) in inputs.items()} == {
        "input_ids": ("INT32", np.array([5, 6, 7], np.int32).tobytes()),
        "input_lengths": ("INT32", np.int32(3).tobytes()),
        "request_output_len": ("UINT32", np.uint32(20).tobytes()),
        "end_id": ("UINT32", np.uint32(2**32 - 1).tobytes()),
        "pad_id": ("UINT32", np.uint32(0).tobytes()),
    }


def test_whole_responses_of_older_models_begin_with_the_prompt() -> None:
    def count(model: ServedModel, options: codec.RequestOptions) -> int:
        return codec.count_prompt_tokens(_SPEC, model, options)

    assert count(_OLD_MODEL, _OPTIONS) == 3
    assert count(_OLD_MODEL, _STREAM_OPTIONS) == count(_MODEL, _OPTIONS) == 0


def test_encode_request_sets_streaming() -> None:
    encoded = codec.encode_request(_SPEC, _MODEL, "1", _STREAM_OPTIONS)
    assert _inputs(encoded)["streaming"] == ("BOOL", [1, 1], b"\x01")


def test_encode_request_enables_the_empty_final_response() -> None:
    encoded = codec.encode_request(_SPEC, _MODEL, "9", _OPTIONS)
    request = service_pb2.ModelInferRequest.FromString(encoded)
    assert (request.model_name, request.id) == ("tensorrt_llm", "9")
    assert request.parameters["triton_enable_empty_final_response"].bool_param


@given(num_tokens=st.integers(0, 100), is_final=st.booleans())
def test_decode_stream_response_counts_tokens_and_detects_the_end(
    num_tokens: int, is_final: bool
) -> None:
    outputs = tokens(num_tokens) if num_tokens else {}
    raw = encode_stream_response(outputs, _REQUEST, is_final=is_final).SerializeToString()
    response = codec.decode_stream_response(raw)
    assert (response.num_tokens, response.is_final) == (num_tokens, is_final)


def test_decode_unary_response_is_final() -> None:
    raw = encode_response(tokens(3), _REQUEST).SerializeToString()
    assert codec.decode_unary_response(raw) == codec.Response(3, True, ids=bytes(12))


def test_decode_ignores_padding_beyond_the_sequence_length() -> None:
    reply = encode_response(tokens(5), _REQUEST)
    reply.raw_output_contents[1] = np.int32(2).tobytes()
    assert codec.decode_unary_response(reply.SerializeToString()).num_tokens == 2


def test_decode_reports_that_ids_without_a_length_may_be_padded() -> None:
    outputs = {"output_ids": [5, 9, 9]}
    ids = np.array([5, 9, 9], np.int32).tobytes()
    padded = codec.Response(3, True, ids=ids, is_padded=True)
    raw = encode_response(outputs, _REQUEST).SerializeToString()
    assert codec.decode_unary_response(raw) == padded
    event = json.dumps({"output_ids": [5, 9, 9]}).encode()
    assert codec.decode_event(event) == replace(padded, is_final=False)


def test_decode_stream_response_drops_the_request_id_of_an_error() -> None:
    raw = service_pb2.ModelStreamInferResponse(
        error_message="[request id: tllm-bench-3] too long"
    ).SerializeToString()
    assert codec.decode_stream_response(raw) == codec.Response(0, True, "too long")


def test_encode_request_of_the_vllm_layout_has_sampling_parameters_and_no_batch_dimension() -> None:
    names = frozenset(each.name for each in load_contracts()["vllm"].inputs)
    model = replace(_MODEL, name="mine", inputs=names)
    spec = RequestSpec(np.array([5], np.int32), 20, text="hi", ignores_eos=True)
    inputs = _inputs(codec.encode_request(spec, model, "1", _STREAM_OPTIONS))
    _, shape, content = inputs.pop("sampling_parameters")
    assert (shape, json.loads(content[4:])) == (
        [1], {"max_tokens": 20, "temperature": 0, "ignore_eos": True},
    )  # fmt: skip
    assert inputs == {
        "text_input": ("BYTES", [1], b"\x02\0\0\0hi"),
        "stream": ("BOOL", [1], b"\x01"),
        "exclude_input_in_output": ("BOOL", [1], b"\x01"),
        "return_num_input_tokens": ("BOOL", [1], b"\x01"),
        "return_num_output_tokens": ("BOOL", [1], b"\x01"),
    }
