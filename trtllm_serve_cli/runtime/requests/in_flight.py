"""Track a model's requests from submission to the engine worker until the last response."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import triton_python_backend_utils as pb_utils

from ..engine import GenerationRequest, InvalidRequest, SequenceUpdate
from ..log import write_traceback
from ..lora.adapter_request import discard, parse_lora, read_lora_name
from ..request_check import check_request
from ..scratch import make_temporary_folder
from ..triton.stub_workarounds import pick_requested
from ..triton.tensors import INTERNAL_ID_PREFIX, Array, EngineRow, GetTensor, pack_failure
from ..worker.worker_link import WorkerFailed, WorkerLink
from ..worker.worker_pool import WorkerPool
from .cancel_watch import CancelWatch, WatchedRequest
from .request_record import RequestRecord
from .responses import ResponseBuilder, merge_responses

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Stoppable(Protocol):
    """A request that can be stopped by its id. `num_rows` rows of it are in the engine worker."""

    id: str
    num_rows: int

    def stop(self) -> None:
        """Stop the request. Only the first call has an effect."""


class InFlight:
    """The running requests of one model, which can be stopped by id."""

    def __init__(
        self, worker: WorkerLink | WorkerPool, watch: CancelWatch, *, is_decoupled: bool
    ) -> None:
        self.worker = worker
        self.watch = watch
        self.is_decoupled = is_decoupled
        self._by_id: dict[str, list[Stoppable]] = {}
        self._num_rows = 0
        self._changed = threading.Condition()
        self._adapters = make_temporary_folder("tllm-lora-")

    def start(
        self,
        request: Any,
        sender: Any,
        get: GetTensor,
        rows: Sequence[EngineRow],
        new_response_builder: Callable[[Any], ResponseBuilder],
        record: RequestRecord | None,
    ) -> Stoppable:
        """Submit `rows` to the engine worker, with the requested LoRA adapters.

        `new_response_builder(row)` returns the builder for a row's responses. The outcome is stored
        in `record`, which is None for a BLS request from a text model. Return the request. Raise
        `InvalidRequest` if a row or its adapter is invalid. If a row cannot be submitted, cancel
        all rows and raise `WorkerFailed`.
        """
        if record is not None:
            record.num_prompt_tokens = sum(len(row.fields["input_ids"]) for row in rows)
            record.submitted_ns = record.now_ns()
        for row in rows:
            check_request(GenerationRequest(id=0, **row.fields), self.worker.limits)
        response_builders = [new_response_builder(row) for row in rows]
        name = read_lora_name(request.parameters())
        adapters = parse_lora(get, name, len(rows), Path(self._adapters.name))
        for row, adapter in zip(rows, adapters, strict=True):
            row.fields.update(adapter)
        started = _Request(self, request, sender, rows, response_builders, record)
        try:
            started.start()
        except WorkerFailed:
            discard(row.fields for row in rows)
            raise
        return started

    def close(self) -> None:
        """Delete the LoRA adapter files that the engine has not read.

        Call this method when no request is running.
        """
        self._adapters.cleanup()

    def stop(self, request_id: str) -> bool:
        """Stop all requests with this id. Return whether at least one was running."""
        with self._changed:
            running = list(self._by_id.get(request_id, ())) if request_id else []
        for each in running:
            each.stop()
        return bool(running)

    def wait_below(self, num_rows: int) -> None:
        """Block until fewer than `num_rows` rows are running."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_rows < num_rows)

    def add(self, request: Stoppable) -> None:
        """Register a request until `remove` is called."""
        with self._changed:
            self._num_rows += request.num_rows
            if request.id:
                self._by_id.setdefault(request.id, []).append(request)

    def remove(self, request: Stoppable) -> None:
        """Remove a request that has ended."""
        with self._changed:
            self._num_rows -= request.num_rows
            same_id = self._by_id.get(request.id, [])
            if request in same_id:
                same_id.remove(request)
            if not same_id:
                self._by_id.pop(request.id, None)
            self._changed.notify_all()


class _Request:
    """A request in flight, with its rows in the engine worker and its unsent responses."""

    def __init__(
        self,
        in_flight: InFlight,
        request: Any,
        sender: Any,
        rows: Sequence[EngineRow],
        response_builders: Sequence[ResponseBuilder],
        record: RequestRecord | None,
    ) -> None:
        self.id = request.request_id()
        self.num_rows = len(rows)
        self._in_flight = in_flight
        self._requested_outputs = request.requested_output_names()
        self._is_internal = self.id.startswith(INTERNAL_ID_PREFIX)
        self._sender = sender
        self._rows = rows
        self._response_builders = response_builders
        self._record = record
        self._unsent: list[dict[str, Array]] = []
        # Maps each output to its latest array and the tensor created from that array.
        self._tensors: dict[str, tuple[Array, Any]] = {}
        self._lock = threading.RLock()
        self._is_open = True
        self._engine_ids: list[int] = []
        self._watched: WatchedRequest | None = None

    def start(self) -> None:
        """Submit all rows.

        If a row cannot be submitted, cancel all rows and raise `WorkerFailed`.
        """
        worker = self._in_flight.worker
        with self._lock:
            try:
                for index, row in enumerate(self._rows):
                    self._engine_ids.append(worker.submit(row.fields, self._handler(index)))
            except WorkerFailed:
                self._cancel_engine()
                self._is_open = False
                raise
            self._in_flight.add(self)
            if self._is_internal:
                # Send an empty response immediately. Until its first response, a BLS request
                # occupies one of the 32 threads that also send the responses to other requests
                # (observed with Triton 2.51).
                if self._in_flight.is_decoupled:
                    self._sender.send(pb_utils.InferenceResponse([]))
            else:
                self._watched = self._in_flight.watch.add(self._sender, self.stop)

    def stop(self) -> None:
        """Free the slots, send the tokens generated so far, and close the response stream."""
        with self._lock:
            if not self._is_open:
                return
            self._cancel_engine()
            if self._record is not None:
                self._record.end("cancelled")
            self._unsent += [
                tensors for each in self._response_builders for tensors in each.end_early()
            ]
            self._flush(is_last=True)

    def fail(self, why: str, *, was_rejected: bool = False) -> None:
        """Cancel all rows and end the request with an error."""
        with self._lock:
            if not self._is_open:
                return
            self._cancel_engine()
            if self._record is not None:
                self._record.end("rejected" if was_rejected else "error", why)
            if self._is_internal:
                self._close(self._response(pack_failure(why, was_rejected=was_rejected)))
                return
            self._is_open = False
            self._release()
            send_error(self._sender, why)

    def _handler(self, row: int) -> Callable[[SequenceUpdate], None]:
        def handle(update: SequenceUpdate) -> None:
            try:
                self._process(row, update)
            except Exception as error:  # without a response, the client would wait forever
                write_traceback()
                self.fail(f"the response could not be built: {type(error).__name__}: {error}")

        return handle

    def _process(self, row: int, update: SequenceUpdate) -> None:
        with self._lock:
            if not self._is_open:
                return
            if update.error is not None:
                self.fail(update.error, was_rejected=update.rejected)
                return
            tensors = self._response_builders[row].add(update)
            if tensors is not None:
                self._unsent.append(tensors)
            is_last = all(each.is_done for each in self._response_builders)
            if self._record is not None:
                self._record_update(self._record, row, update, is_last=is_last)
            self._flush(is_last=is_last)

    def _record_update(
        self, record: RequestRecord, row: int, update: SequenceUpdate, *, is_last: bool
    ) -> None:
        if update.token_ids:
            record.add_tokens((row, update.sequence_index), len(update.token_ids))
        if update.finish_reason == "length":
            record.reached_limit = True
        if is_last:
            record.complete()

    def _flush(self, *, is_last: bool) -> None:
        """Send the unsent responses.

        If the model is not decoupled, send a single response when the request ends.
        """
        if not self._in_flight.is_decoupled:
            if is_last:
                self._close(self._response(self._merged()))
            return
        unsent, self._unsent = self._unsent, []
        for number, tensors in enumerate(unsent, 1):
            if is_last and number == len(unsent):
                self._close(self._response(tensors))
            else:
                self._sender.send(self._response(tensors))
        if is_last and self._is_open:
            self._close()

    def _merged(self) -> dict[str, Array]:
        if len(self._unsent) > 1:
            return merge_responses(self._unsent)
        return self._unsent[0] if self._unsent else {}

    def _response(self, tensors: dict[str, Array]) -> Any:
        # Sending outputs that were not requested may crash the stub (see stub_workarounds.py).
        requested = [name for name in tensors if name in self._requested_outputs]
        return pb_utils.InferenceResponse([self._tensor(name, tensors[name]) for name in requested])

    def _tensor(self, name: str, array: Array) -> Any:
        """Return a tensor that contains `array`, or the previous tensor if its array is the same.

        The stub copies a tensor to shared memory when the tensor is sent for the first time. In a
        stream, usually only one output changes, so the other outputs are not copied again.
        """
        known = self._tensors.get(name)
        if known is None or known[0] is not array:
            known = self._tensors[name] = (array, pb_utils.Tensor(name, array))
        return known[1]

    def _close(self, response: Any = None) -> None:
        self._is_open = False
        self._release()
        if response is None:
            self._sender.send(flags=_FINAL)
        else:
            self._sender.send(response, flags=_FINAL)

    def _release(self) -> None:
        if self._watched is not None:
            self._in_flight.watch.remove(self._watched)
            # Break the reference cycle to free Triton's request.
            self._watched = None
        for engine_id in self._engine_ids:
            self._in_flight.worker.forget(engine_id)
        self._in_flight.remove(self)
        discard(row.fields for row in self._rows)

    def _cancel_engine(self) -> None:
        for engine_id in self._engine_ids:
            self._in_flight.worker.cancel(engine_id)


def reject(request: Any, sender: Any, error: InvalidRequest | WorkerFailed) -> None:
    """Send `error` as the response to a request that was not started.

    If the request is from a text model, the response contains the error as output tensors, which
    also indicate whether the request is invalid.
    """
    if not request.request_id().startswith(INTERNAL_ID_PREFIX):
        send_error(sender, str(error))
        return
    packed = pack_failure(str(error), was_rejected=isinstance(error, InvalidRequest))
    tensors = [pb_utils.Tensor(name, value) for name, value in packed.items()]
    requested = pick_requested(request.requested_output_names(), tensors)
    sender.send(pb_utils.InferenceResponse(requested), flags=_FINAL)


def send_error(sender: Any, why: str) -> None:
    """Send an error as the final response."""
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(why))
    sender.send(response, flags=_FINAL)
