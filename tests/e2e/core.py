"""Send token requests directly to `tensorrt_llm` with tritonclient."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics

_TYPES = {
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "int32": "INT32",
    "uint64": "UINT64",
}


def tensor(name: str, values: Any) -> grpcclient.InferInput:
    """Return an input with one row. Floats are FP32, integers INT32."""
    array = np.asarray(values)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    elif array.dtype == np.int64:
        array = array.astype(np.int32)
    array = array.reshape(1, *array.shape) if array.ndim else array.reshape(1, 1)
    tensor_input = grpcclient.InferInput(name, list(array.shape), _TYPES[array.dtype.name])
    tensor_input.set_data_from_numpy(array)
    return tensor_input


def infer(
    endpoint: Endpoint,
    input_ids: list[int],
    num_output_tokens: int,
    *,
    request_id: str = "",
    parameters: dict[str, str] | None = None,
    **inputs: Any,
) -> list[dict[str, Any]]:
    """Return the outputs of every response, as arrays by name, by default without the prompt.

    Raise the error of the server.
    """
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        return list(
            responses(
                client,
                input_ids,
                num_output_tokens,
                request_id=request_id,
                parameters=parameters,
                **inputs,
            )
        )


def responses(
    client: grpcclient.InferenceServerClient,
    input_ids: list[int],
    num_output_tokens: int,
    *,
    request_id: str = "",
    parameters: dict[str, str] | None = None,
    **inputs: Any,
) -> Iterator[dict[str, Any]]:
    """Yield the responses of one request as they arrive, over the stream of `client`."""
    arrived: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: arrived.put(error or result))
    tensors = [
        tensor("input_ids", input_ids),
        tensor("input_lengths", len(input_ids)),
        tensor("request_output_len", num_output_tokens),
        *(
            tensor(name, value)
            for name, value in {"exclude_input_in_output": True, **inputs}.items()
        ),
    ]
    client.async_stream_infer(
        "tensorrt_llm",
        tensors,
        request_id=request_id,
        enable_empty_final_response=True,
        parameters=parameters,
    )
    while True:
        result = arrived.get(timeout=60)
        if isinstance(result, Exception):
            raise result
        response = result.get_response()
        if response.outputs:
            yield {output.name: result.as_numpy(output.name) for output in response.outputs}
        if response.parameters["triton_final_response"].bool_param:
            return


def tokens(outputs: list[dict[str, Any]]) -> list[int]:
    """Return the token ids of all responses of a single sequence."""
    return [
        int(token)
        for each in outputs
        for token in each["output_ids"][0, 0, : each["sequence_length"][0, 0]]
    ]


def gauge(endpoint: Endpoint, kind: str) -> float:
    """Return `nv_trt_llm_request_metrics` of one request type."""
    snapshot = parse_metrics(fetch_metrics(endpoint.metrics), 0.0)
    value = snapshot.value("nv_trt_llm_request_metrics", request_type=kind)
    assert value is not None
    return float(value)


def count_cancelled(endpoint: Endpoint) -> float:
    """Return how many requests to all models have been cancelled or stopped."""
    snapshot = parse_metrics(fetch_metrics(endpoint.metrics), 0.0)
    found = snapshot.find("tllm_requests")
    return sum(each.value for each in found if each.labels["outcome"] == "cancelled")
