"""Requests and responses of the `tensorrt_llm` model as bytes; no connection here.

The load generator moves bytes only: requests are encoded before the run starts, and a response is
stamped before it is decoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from trtllm_serve_cli.bench.workload import RequestSpec

_REQUEST_ID_PREFIX = re.compile(r"^\[request id: [^\]]*\] ")


@dataclass(frozen=True, slots=True)
class Response:
    """How many tokens one response carries (0 in an empty final one), and how it ends."""

    num_tokens: int
    is_final: bool
    error: str | None = None


def encode_request(spec: RequestSpec, model: str, request_id: str, *, stream: bool) -> bytes:
    """A `ModelInferRequest` that generates exactly `spec.num_output_tokens` new tokens.

    No end id is sent: without one, generation runs to `request_output_len`. The prompt is never
    echoed (`exclude_input_in_output`), so every token id that comes back is a new one.
    """
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    _add(request, "input_ids", "INT32", spec.input_ids.reshape(1, -1))
    _add(request, "input_lengths", "INT32", np.array([[spec.input_ids.size]], np.int32))
    _add(request, "request_output_len", "INT32", np.array([[spec.num_output_tokens]], np.int32))
    _add(request, "exclude_input_in_output", "BOOL", np.array([[True]]))
    if stream:
        _add(request, "streaming", "BOOL", np.array([[True]]))
    encoded: bytes = request.SerializeToString()
    return encoded


def decode_stream_response(raw: bytes) -> Response:
    """A `ModelStreamInferResponse`, final by its `triton_final_response` parameter or its error."""
    message = service_pb2.ModelStreamInferResponse.FromString(raw)
    if message.error_message:
        return Response(0, True, _REQUEST_ID_PREFIX.sub("", message.error_message))
    reply = message.infer_response
    is_final = reply.parameters["triton_final_response"].bool_param
    return Response(_count_tokens(reply), is_final)


def decode_unary_response(raw: bytes) -> Response:
    """A `ModelInferResponse`: the one and only response of a model that is not decoupled."""
    return Response(_count_tokens(service_pb2.ModelInferResponse.FromString(raw)), True)


def _add(request: Any, name: str, datatype: str, value: NDArray[Any]) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=value.shape)
    request.raw_input_contents.append(value.tobytes())


def _count_tokens(reply: Any) -> int:
    """New tokens of the first beam.

    output_ids are [1, beams, n]. A sequence_length [1, beams] below n marks padding; above n it
    counts what earlier responses brought.
    """
    num_tokens = 0
    for output, content in zip(reply.outputs, reply.raw_output_contents, strict=False):
        if output.name == "output_ids":
            num_tokens = output.shape[-1]
        elif output.name == "sequence_length" and num_tokens:
            num_tokens = min(num_tokens, int.from_bytes(content[:4], "little", signed=True))
    return int(num_tokens)
