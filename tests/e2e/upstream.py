"""Send requests like the client programs of upstream's Triton backend."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint

Inputs = dict[str, Any]
PROMPT = [25212, 281, 4081, 29, 20536, 4649, 28, 28241, 259, 7018, 347, 253]
END_ID = 2


@dataclass(frozen=True, slots=True)
class Stop:
    """A way to end a request after its first response: `stop` inputs with its id, or cancelling."""

    inputs: Inputs | None = None


def core_inputs(prompt: Sequence[int], num_output_tokens: int, *, streaming: bool) -> Inputs:
    """Return the inputs that `inflight_batcher_llm_client.py` always sends to `tensorrt_llm`."""
    return {
        "input_ids": np.array([prompt], np.int32),
        "input_lengths": np.array([[len(prompt)]], np.int32),
        "request_output_len": np.array([[num_output_tokens]], np.int32),
        "beam_width": np.array([[1]], np.int32),
        "temperature": np.array([[1.0]], np.float32),
        "streaming": np.array([[streaming]]),
        "end_id": np.array([[END_ID]], np.int32),
        "pad_id": np.array([[END_ID]], np.int32),
        "runtime_top_k": np.array([[1]], np.int32),
        "runtime_top_p": np.array([[0.0]], np.float32),
    }


def stop_inputs() -> Inputs:
    """Return the second request of `--stop-after-ms`, which has the id of the first."""
    return {
        "input_ids": np.array([[0]], np.int32),
        "input_lengths": np.array([[0]], np.int32),
        "request_output_len": np.array([[0]], np.int32),
        "stop": np.array([[True]]),
    }


def text_inputs(prompts: Sequence[str], num_output_tokens: int, *, streaming: bool) -> Inputs:
    """Return the inputs that `end_to_end_grpc_client.py` always sends, with a row per prompt."""
    rows = np.ones((len(prompts), 1))
    return {
        "text_input": np.array([[prompt] for prompt in prompts], object),
        "max_tokens": (rows * num_output_tokens).astype(np.int32),
        "stream": (rows * streaming).astype(bool),
        "beam_width": rows.astype(np.int32),
        "temperature": rows.astype(np.float32),
        "exclude_input_in_output": np.zeros((len(prompts), 1), bool),
    }


def stop_text_inputs() -> Inputs:
    """Return a stop request to a text model, which has no counterpart in upstream's programs."""
    return {
        "text_input": np.array([[""]], object),
        "max_tokens": np.array([[1]], np.int32),
        "stop": np.array([[True]]),
    }


def as_tensors(inputs: Inputs, kind: Any = grpcclient.InferInput) -> list[Any]:
    """Convert the inputs to those of tritonclient's gRPC or, with another `kind`, HTTP client."""
    tensors = []
    for name, array in inputs.items():
        tensor_input = kind(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor_input.set_data_from_numpy(array)
        tensors.append(tensor_input)
    return tensors


def stream(
    endpoint: Endpoint,
    model: str,
    inputs: Inputs,
    *,
    outputs: Sequence[str] = (),
    request_id: str = "",
    stop: Stop | None = None,
) -> list[Any]:
    """Send one request over a new stream and return all results and errors until its end."""
    arrived: queue.Queue[Any] = queue.Queue()
    requested = [grpcclient.InferRequestedOutput(name) for name in outputs] or None
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        client.start_stream(lambda result, error: arrived.put(error or result))
        client.async_stream_infer(
            model, as_tensors(inputs), outputs=requested, request_id=request_id
        )
        if stop:
            wait_until(lambda: not arrived.empty())
            if stop.inputs is not None:
                client.async_stream_infer(model, as_tensors(stop.inputs), request_id=request_id)
        client.stop_stream(cancel_requests=stop is not None and stop.inputs is None)
    return list(arrived.queue)


def names(result: grpcclient.InferResult) -> set[str]:
    return {output.name for output in result.get_response().outputs}


def new_tokens(results: Sequence[grpcclient.InferResult]) -> list[int]:
    """Return the ids of the first sequence from all responses that have any, in order."""
    arrays = [result.as_numpy("output_ids") for result in results]
    return [int(token) for ids in arrays if ids is not None for token in ids[0, 0]]


def text(results: Sequence[grpcclient.InferResult]) -> str:
    """Join the first string of each response; a text output has no batch dimension."""
    return "".join(result.as_numpy("text_output")[0].decode() for result in results)
