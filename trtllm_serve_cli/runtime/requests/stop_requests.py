"""Stop requests by id, on whichever instance of the model they run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

from ..engine import InvalidRequest
from ..worker.stop_forwarding import (
    StopForwarder,
    caller_socket_name,
    forward_stop,
    stop_socket_name,
)
from .in_flight import InFlight

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class StopHandler:
    """Handles the stop requests that one instance of the model `name` receives.

    Triton may send a stop request to any instance, so the handler also forwards it to the others.
    It also forwards the stop request to the models that call this model. A client can therefore
    send a stop request for a text model's request to `tensorrt_llm`, as with NVIDIA's ensemble.
    Text models set `called_model` to the model that they call, and receive its stop requests.
    """

    def __init__(self, name: str, in_flight: InFlight, *, called_model: str = "") -> None:
        self._in_flight = in_flight
        self._forwarder = StopForwarder(stop_socket_name(name), in_flight.stop)
        self._callers = caller_socket_name(name)
        self._as_caller = (
            StopForwarder(caller_socket_name(called_model), in_flight.stop)
            if called_model
            else None
        )

    def handle(self, request_id: str, sender: Any) -> None:
        """Stop all requests with this id and respond to the stop request.

        Raise `InvalidRequest` if neither this model nor a model that calls it is running a request
        with this id.
        """
        is_known = self._in_flight.stop(request_id)
        if request_id:
            is_known = self._forwarder.forward(request_id) or is_known
            is_known = any(forward_stop(self._callers, request_id)) or is_known
        if not is_known:
            raise InvalidRequest(
                f"no running request has the id {request_id!r}; send a stop request with the id "
                "of a running request"
            )
        # Send a response without outputs, because NVIDIA's clients wait for one.
        sender.send(pb_utils.InferenceResponse([]), flags=_FINAL)

    def close(self) -> None:
        """Stop receiving stop requests from other instances and from the called model."""
        self._forwarder.close()
        if self._as_caller is not None:
            self._as_caller.close()


class StoppableRequest:
    """A text model's request, which its client can cancel or end with a stop request.

    A stop request may arrive while the text model is still encoding the prompt.
    """

    # The rows are counted when they are submitted to the engine worker.
    num_rows = 0

    def __init__(self, request_id: str, sender: Any) -> None:
        self.id = request_id
        self.has_client_cancelled = False
        self._sender = sender
        self._lock = threading.Lock()
        self._is_stopped = False
        self._on_stop: Callable[[], None] | None = None

    def stop(self) -> None:
        """Stop the request because of a stop request."""
        with self._lock:
            self._is_stopped = True
            on_stop = self._on_stop
        if on_stop is not None:
            on_stop()

    def call_on_stop(self, on_stop: Callable[[], None]) -> None:
        """Call `on_stop` when the request is stopped, or immediately if it already is."""
        with self._lock:
            self._on_stop = on_stop
            is_stopped = self._is_stopped
        if is_stopped:
            on_stop()

    @property
    def must_end(self) -> bool:
        """True if the request was stopped or `is_cancelled` has found it cancelled."""
        return self._is_stopped or self.has_client_cancelled

    def is_cancelled(self) -> bool:
        """Return whether the request was stopped or its client has cancelled it.

        `CancelWatch` calls this method instead of the sender's method of the same name.
        """
        self.has_client_cancelled = self.has_client_cancelled or bool(self._sender.is_cancelled())
        return self.must_end
