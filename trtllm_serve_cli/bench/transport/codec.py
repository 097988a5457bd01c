"""Encode requests and decode responses for gRPC and HTTP, without I/O.

The load generator sends and receives raw bytes, so that encoding and decoding do not affect the
timestamps. It encodes requests before the run, except in closed loops with a time limit and for
later turns of conversations. It timestamps each response before decoding it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.workloads.spec import RequestSpec
from trtllm_serve_cli.client.llmapi import name_inputs, shape_input
from trtllm_serve_cli.client.transport.tensors import WORD_LISTS
from trtllm_serve_cli.client.vllm import SAMPLING_INPUT, has_vllm_inputs, plan_vllm_inputs

_REQUEST_ID_PREFIX = re.compile(r"^\[request id: [^\]]*\] ")
# This end id is not a valid token id, so generation continues to the requested length.
_NEVER_END_ID = -1


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options for all requests in a run.

    - `stream` is true if the server sends each response in parts, as the tokens are generated.
    - `server_times` requests the arrival and scheduling times of each request from the server.
    - `timeout_s` is the time limit for a request, in seconds, or `None` for no limit. A request
      that exceeds the limit fails.
    - `needs_ids` is true if the workload has conversations, because each later turn repeats the
      token ids of the earlier responses.
    """

    stream: bool = False
    server_times: bool = False
    timeout_s: float | None = None
    needs_ids: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """One decoded response.

    - `num_tokens` is 0 in an empty final response.
    - `ids` contains the returned token ids as INT32 bytes if the request has a single prompt.
    - `is_padded` is true if padding may follow the generated token ids. In the gpt layout,
      responses do not contain the sequence length, and are padded with the end id.
    - `text` is set if the model returns text.
    - `is_counted` is false if the server did not report the number of tokens in the text.
    - `total_tokens` is the number of tokens in all responses to the request so far, or `None` if
      the server did not report it.
    """

    num_tokens: int
    is_final: bool
    error: str | None = None
    ids: bytes = b""
    text: str | None = None
    is_counted: bool = True
    num_input_tokens: int | None = None
    queue_s: float | None = None
    total_tokens: int | None = None
    is_padded: bool = False


def encode_request(
    spec: RequestSpec, model: ServedModel, request_id: str, options: RequestOptions
) -> bytes:
    """Encode `spec` as a `ModelInferRequest`."""
    request = service_pb2.ModelInferRequest(model_name=model.name, id=request_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, value in _plan_tensors(spec, model, options).items():
        shape = (
            shape_input(model.name, model.inputs, value.shape)
            if spec.text is not None
            else value.shape
        )
        is_text = value.dtype == object
        request.inputs.add(name=name, datatype=_DATATYPES[value.dtype.char], shape=shape)
        content = _pack_text(value.item()) if is_text else value.tobytes()
        request.raw_input_contents.append(content)
    encoded: bytes = request.SerializeToString()
    return encoded


def encode_body(spec: RequestSpec, model: ServedModel, options: RequestOptions) -> bytes:
    """Encode `spec` as JSON for Triton's generate endpoints."""
    tensors = _plan_tensors(spec, model, options)
    values = {
        name: value.item() if value.size == 1 and name != "input_ids" else value.ravel().tolist()
        for name, value in tensors.items()
    }
    return json.dumps(values).encode()


def decode_stream_response(raw: bytes) -> Response:
    """Decode a `ModelStreamInferResponse`.

    The response is final if its `triton_final_response` parameter is true, or if it is an error.
    """
    message = service_pb2.ModelStreamInferResponse.FromString(raw)
    if message.error_message:
        return Response(0, True, _REQUEST_ID_PREFIX.sub("", message.error_message))
    reply = message.infer_response
    is_final = reply.parameters["triton_final_response"].bool_param
    return _read_reply(reply, is_final=is_final)


def decode_unary_response(raw: bytes) -> Response:
    """Decode a `ModelInferResponse`, which is the only response of a non-decoupled model."""
    return _read_reply(service_pb2.ModelInferResponse.FromString(raw), is_final=True)


def decode_event(data: bytes) -> Response:
    """Decode the JSON data of one server-sent event or of one complete response.

    Empty data marks the end of the stream.
    """
    if not data:
        return Response(0, True)
    try:
        outputs = json.loads(data)
    except ValueError:
        return Response(0, True, f"the response is not valid JSON: {data[:80]!r}")
    if not isinstance(outputs, dict) or "error" in outputs:
        return Response(0, True, str(outputs["error"] if isinstance(outputs, dict) else outputs))
    ids = _as_list(outputs.get("output_ids"))
    lengths = _as_list(outputs.get("sequence_length"))
    return _count(
        outputs,
        num_ids=min(len(ids), int(lengths[0])) if lengths else len(ids),
        ids=np.array(ids, np.int32).tobytes() if ids else b"",
        is_final=False,
        has_length=bool(lengths),
    )


_DATATYPES = {"i": "INT32", "I": "UINT32", "?": "BOOL", "O": "BYTES"}


def _plan_tensors(
    spec: RequestSpec, model: ServedModel, options: RequestOptions
) -> dict[str, NDArray[Any]]:
    """Return the request's tensors, keyed by input name, with the types that the model declares."""
    tensors = _plan_signed_tensors(spec, model, options)
    return {
        name: value.astype(np.uint32) if name in model.unsigned_inputs else value
        for name, value in tensors.items()
    }


def _plan_signed_tensors(
    spec: RequestSpec, model: ServedModel, options: RequestOptions
) -> dict[str, NDArray[Any]]:
    """Return the request's tensors, keyed by input name. Each tensor has a batch dimension.

    If a request with token ids does not contain a valid end id, the model generates exactly
    `request_output_len` tokens. `exclude_input_in_output` removes the prompt from the output, so
    that all returned tokens are generated tokens.
    """
    num_rows = spec.input_ids.shape[0] if spec.input_ids.ndim == 2 else 1

    def every_row(value: int | bool) -> NDArray[Any]:
        dtype = np.bool_ if isinstance(value, bool) else np.int32
        return np.full((num_rows, 1), value, dtype)

    optional = {
        "exclude_input_in_output": True,
        "return_perf_metrics": options.server_times,
        "return_num_input_tokens": spec.text is not None,
        "return_num_output_tokens": spec.text is not None,
    }
    optional_inputs = {
        name: every_row(True)
        for name, is_requested in optional.items()
        if is_requested and (name in model.inputs or spec.text is not None)
    }
    if spec.text is None:
        if options.stream:
            optional_inputs["streaming"] = every_row(True)
        required = {"end_id": _NEVER_END_ID, "pad_id": 0}
        optional_inputs |= {
            name: every_row(value)
            for name, value in required.items()
            if name in model.required_inputs
        }
        if spec.end_id is not None:
            optional_inputs["end_id"] = every_row(spec.end_id)
        return {
            "input_ids": spec.input_ids.reshape(num_rows, -1),
            "input_lengths": every_row(spec.input_ids.size // num_rows),
            "request_output_len": every_row(spec.num_output_tokens),
            **optional_inputs,
        }
    if has_vllm_inputs(model.inputs):
        return _plan_vllm_tensors(spec, model, options)
    if spec.ignores_eos:
        optional_inputs["end_id"] = every_row(_NEVER_END_ID)
    optional_inputs |= {
        name: np.array([[""]], object) for name in WORD_LISTS & model.required_inputs
    }
    tensors = {
        "text_input": np.array([[spec.text]], object),
        "max_tokens": every_row(spec.num_output_tokens),
        "stream": every_row(options.stream),
        **optional_inputs,
    }
    names = name_inputs(model.name, tensors, model.inputs)
    return {names[name]: value for name, value in tensors.items() if name in names}


def _plan_vllm_tensors(
    spec: RequestSpec, model: ServedModel, options: RequestOptions
) -> dict[str, NDArray[Any]]:
    values = {
        "text_input": spec.text,
        "max_tokens": spec.num_output_tokens,
        "temperature": 0,
        "stream": options.stream,
        "exclude_input_in_output": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    if options.server_times:
        values["return_perf_metrics"] = True
    planned = plan_vllm_inputs(model.name, values, model.inputs)
    if spec.ignores_eos:
        parameters = json.loads(planned[SAMPLING_INPUT]) | {"ignore_eos": True}
        planned[SAMPLING_INPUT] = json.dumps(parameters)
    return {
        name: np.array([[value]], np.bool_ if isinstance(value, bool) else object)
        for name, value in planned.items()
    }


def count_prompt_tokens(spec: RequestSpec, model: ServedModel, options: RequestOptions) -> int:
    """Return the number of prompt tokens at the start of the response.

    The result is 0 if the response contains only generated tokens, or if the prompt is text.
    """
    is_included = model.returns_prompt and spec.text is None and not options.stream
    return spec.input_ids.size if is_included else 0


def _pack_text(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(4, "little") + encoded


def _read_reply(reply: Any, *, is_final: bool) -> Response:
    """Decode one response.

    `output_ids` has shape [rows, beams, n], and `sequence_length` has shape [rows, beams].
    If a sequence length is below n, the remaining ids are padding. If it is above n, it includes
    the tokens in earlier responses.
    """
    raw = {
        output.name: (output, content)
        for output, content in zip(reply.outputs, reply.raw_output_contents, strict=False)
    }
    outputs: dict[str, Any] = {
        name: int.from_bytes(raw[name][1][:8], "little", signed=True)
        for name in _NUMBERS
        if name in raw
    }
    if "text_output" in raw:
        # The length of each text precedes the text. Read only the first text, because texts for
        # other beams may follow.
        content = raw["text_output"][1]
        length = int.from_bytes(content[:4], "little")
        outputs["text_output"] = content[4 : 4 + length].decode(errors="replace")
    num_ids, ids = 0, b""
    if "output_ids" in raw:
        shape = raw["output_ids"][0].shape
        num_ids = shape[-1] if len(shape) < 3 or shape[0] == 1 else shape[0] * shape[-1]
        if "sequence_length" in raw and num_ids:
            lengths = np.frombuffer(raw["sequence_length"][1], np.int32)
            beams = shape[1] if len(shape) > 2 else 1
            num_ids = int(np.minimum(lengths[::beams], shape[-1]).sum())
        ids = raw["output_ids"][1][: 4 * num_ids]
    has_length = "sequence_length" in raw
    return _count(outputs, num_ids=num_ids, ids=ids, is_final=is_final, has_length=has_length)


_NUMBERS = ("num_input_tokens", "num_output_tokens", "arrival_time_ns", "first_scheduled_time_ns")


def _count(
    outputs: Mapping[str, Any], *, num_ids: int, ids: bytes, is_final: bool, has_length: bool
) -> Response:
    text = outputs.get("text_output")
    counted = outputs.get("num_output_tokens")
    num_input_tokens = outputs.get("num_input_tokens")
    if isinstance(text, list):  # Use only the first sequence's text.
        text = text[0] if text else ""
    if text is None:
        num_tokens = num_ids
    else:
        num_tokens = int(counted) if counted is not None else int(bool(text))
    arrived, scheduled = outputs.get("arrival_time_ns"), outputs.get("first_scheduled_time_ns")
    return Response(
        num_tokens=num_tokens,
        is_final=is_final,
        ids=ids,
        text=text,
        is_counted=text is None or counted is not None,
        num_input_tokens=None if num_input_tokens is None else int(num_input_tokens),
        queue_s=(scheduled - arrived) / 1e9 if arrived and scheduled else None,
        is_padded=text is None and num_ids > 0 and not has_length,
    )


def _as_list(value: Any) -> list[Any]:
    """Return the elements of a JSON tensor as a list.

    The generate endpoints encode a tensor with a single element as a scalar. Return an empty list
    if the tensor is missing.
    """
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
