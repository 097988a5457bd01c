"""Call `tensorrt_llm` and the draft model through Business Logic Scripting (BLS)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..engine import InvalidRequest
from ..lora.adapter_request import NAME_PARAMETER
from ..triton.stub_workarounds import StreamKeeper
from ..triton.tensors import Array, find_failure
from ..worker.stop_forwarding import forward_stop, stop_socket_name
from .core_adapter import CoreAdapter

# Triton's error message contains one of these phrases if the queue is full or a queued request has
# timed out.
_QUEUE_REJECTIONS = ("Exceeds maximum queue size", "timeout expired")


class RequestError(Exception):
    """Raised if `tensorrt_llm` or the draft model fails. The message is sent to the client."""


class CoreCaller:
    """Calls the models that run engines.

    `outputs` contains the names of the outputs to request. `is_decoupled` must be true if, and only
    if, the called models are decoupled. A decoupled call to a model that is not decoupled never
    returns (observed with Triton 2.51).
    """

    def __init__(self, adapter: CoreAdapter, outputs: Sequence[str], *, is_decoupled: bool) -> None:
        self._adapter = adapter
        self._outputs = list(outputs)
        self._is_decoupled = is_decoupled
        self._streams = StreamKeeper()

    def call(
        self, model: str, inputs: dict[str, Array], request_id: str, lora_name: str | None = None
    ) -> Iterator[dict[str, Array]]:
        """Return an iterator that sends `inputs` to `model` and yields each response's outputs.

        Raise `InvalidRequest` if the model's TensorRT-LLM version does not support the request. The
        returned iterator raises `InvalidRequest` if `model` rejects the request, or `RequestError`
        if the request fails.
        """
        request = self._adapter.adapt(inputs)
        tensors = [pb_utils.Tensor(name, array) for name, array in request.inputs.items()]
        parameters = {} if lora_name is None else {NAME_PARAMETER: lora_name}
        return map(request.complete, self._receive(model, tensors, request_id, parameters))

    def stop(self, model: str, request_id: str) -> None:
        """Stop a request to `model` that the client has cancelled."""
        # If possible, notify the instance directly through its socket. Triton could queue a regular
        # stop request behind other requests to the same instance. If no instance is running the
        # request yet, return as well, because `CancelWatch` repeats the call.
        if forward_stop(stop_socket_name(model), request_id):
            return
        inputs = [
            pb_utils.Tensor("stop", np.array([[True]])),
            # TensorRT-LLM 0.14 and earlier require these inputs even in a stop request.
            pb_utils.Tensor("input_ids", np.zeros((1, 1), dtype=np.int32)),
            pb_utils.Tensor("input_lengths", np.zeros((1, 1), dtype=np.int32)),
            pb_utils.Tensor("request_output_len", np.zeros((1, 1), dtype=np.int32)),
        ]
        responses = self._exec(model, request_id, inputs, ["output_ids"], {})
        # Ignore errors, because the stop request fails if the request has just ended.
        with contextlib.suppress(Exception):
            list(responses)
        self._streams.keep(responses)

    def _receive(
        self, model: str, tensors: list[Any], request_id: str, parameters: dict[str, str]
    ) -> Iterator[dict[str, Array]]:
        responses = self._exec(model, request_id, tensors, self._outputs, parameters)
        try:
            for response in responses:
                if response.has_error():
                    why = response.error().message()
                    raise _failure(why, was_rejected=any(each in why for each in _QUEUE_REJECTIONS))
                outputs = {each.name(): each.as_numpy() for each in response.output_tensors()}
                if (failure := find_failure(outputs)) is not None:
                    raise _failure(failure[0], was_rejected=failure[1])
                # The last response of a stream may have no tensors.
                if outputs:
                    yield outputs
        finally:
            self._streams.keep(responses)

    def _exec(
        self,
        model: str,
        request_id: str,
        inputs: list[Any],
        outputs: list[str],
        parameters: dict[str, str],
    ) -> Any:
        request = pb_utils.InferenceRequest(
            model_name=model,
            request_id=request_id,
            requested_output_names=outputs,
            inputs=inputs,
            parameters=parameters,
        )
        return request.exec(decoupled=True) if self._is_decoupled else [request.exec()]


def _failure(why: str, *, was_rejected: bool) -> Exception:
    return InvalidRequest(why) if was_rejected else RequestError(why)
