"""A fake of `triton_python_backend_utils` with the part that the runtime's models use.

As in Triton's `pb_stub.cc` and `response_sender.cc`, a sender rejects responses after the final
flag, which is sent with a response or alone.
"""

from __future__ import annotations

import json
import queue
import struct
from collections.abc import Container
from typing import Any

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
_TIMEOUT_S = 60.0


class TritonModelException(Exception):
    pass


class TritonError:
    def __init__(self, message: str) -> None:
        self._message = message

    def message(self) -> str:
        return self._message


class Tensor:
    def __init__(self, name: str, value: np.ndarray[Any, Any]) -> None:
        self._name = name
        self._value = value

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self._value


class TruncatedTensor(Tensor):
    """A BYTES tensor that ends inside the length of a string, read like Triton's stub reads it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        (length,) = struct.unpack_from("<I", b"\x01\x00")
        return np.array([b"x" * length], dtype=object)


class InferenceResponse:
    def __init__(
        self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None
    ) -> None:
        self._tensors = output_tensors or []
        self._error = error

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def content(self) -> Any:
        """Return the message of the error, or each tensor as lists."""
        if self._error is not None:
            return self._error.message()
        return {tensor.name(): tensor.as_numpy().tolist() for tensor in self._tensors}


class ResponseSender:
    def __init__(self) -> None:
        self.client_has_disconnected = False
        self._sent: queue.Queue[InferenceResponse | None] = queue.Queue()
        self._is_closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self._is_closed:
            raise RuntimeError("the response sender has been closed")
        if response is not None:
            self._sent.put(response)
        if flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL:
            self._is_closed = True
            self._sent.put(None)

    def is_cancelled(self) -> bool:
        return self.client_has_disconnected

    def next(self) -> Any:
        """Return the next response, or None after the final flag."""
        return self._sent.get(timeout=_TIMEOUT_S)

    def responses(self) -> list[Any]:
        """Wait for the final flag, and return the content of all further responses."""
        responses = iter(self.next, None)
        return [response.content() for response in responses]


class _Everything:
    """All output names, as Triton sets them if the client requests none by name."""

    def __contains__(self, name: object) -> bool:
        return True


class Request:
    """A request as Triton passes it to `execute`."""

    def __init__(
        self,
        tensors: dict[str, Any],
        request_id: str = "",
        requested_outputs: Container[str] | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self.tensors = {name: Tensor(name, np.asarray(each)) for name, each in tensors.items()}
        self.sender = ResponseSender()
        self._request_id = request_id
        self._requested_outputs = _Everything() if requested_outputs is None else requested_outputs
        self._parameters = parameters or {}

    def inputs(self) -> list[Tensor]:
        return list(self.tensors.values())

    def requested_output_names(self) -> Container[str]:
        return self._requested_outputs

    def request_id(self) -> str:
        return self._request_id

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def get_response_sender(self) -> ResponseSender:
        return self.sender


class InferenceRequest:
    """A BLS request; tests replace `exec`."""

    def __init__(
        self,
        *,
        model_name: str,
        inputs: list[Tensor],
        requested_output_names: list[str],
        request_id: str = "",
        parameters: dict[str, str] | None = None,
    ) -> None:
        self.model_name = model_name
        self.parameters = parameters or {}
        self.inputs = {tensor.name(): tensor.as_numpy() for tensor in inputs}
        self.request_id = request_id

    def exec(self, decoupled: bool = False) -> Any:
        raise NotImplementedError


def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
    return next((tensor for tensor in response.output_tensors() if tensor.name() == name), None)


class MetricFamily:
    GAUGE = "gauge"
    COUNTER = "counter"

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        self.name = name

    def Metric(self, *, labels: dict[str, str]) -> Metric:
        METRICS.append(Metric(self.name, labels))
        return METRICS[-1]


class Metric:
    """A series and its current value."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        self.name = name
        self.labels = labels
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def increment(self, value: float) -> None:
        self.value += value


# All metrics in the order of their creation.
METRICS: list[Metric] = []
