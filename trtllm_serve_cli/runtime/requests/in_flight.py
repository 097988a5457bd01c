"""The requests of one model that an engine worker runs, from their start to their last response."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from ..engine import GenerationRequest, InvalidRequest, SequenceUpdate, check_request
from ..log import write_traceback
from ..lora.adapter_request import discard, parse_lora, read_lora_name
from ..triton.stub_workarounds import pick_requested
from ..triton.tensors import INTERNAL_ID_PREFIX, Array, EngineRow, GetTensor, pack_failure
from ..worker.worker_link import WorkerFailed, WorkerLink
from .cancel_watch import CancelWatch, Watched
from .request_record import RequestRecord
from .responses import Answer, merge_answers

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class InFlight:
    """All of them, and who of them goes by which id."""

    def __init__(self, worker: WorkerLink, watch: CancelWatch, *, is_decoupled: bool) -> None:
        self.worker = worker
        self.watch = watch
        self.is_decoupled = is_decoupled
        self._by_id: dict[str, list[_Request]] = {}
        self._num_rows = 0
        self._changed = threading.Condition()
        self._adapters = tempfile.TemporaryDirectory(prefix="tllm-lora-")

    def start(
        self,
        request: Any,
        sender: Any,
        get: GetTensor,
        rows: Sequence[EngineRow],
        answer: Callable[[Any], Answer],
        record: RequestRecord | None,
    ) -> None:
        """Run the rows, with the adapters that the request wants, and answer each with its answer.

        Raises `InvalidRequest` or `WorkerFailed`, and runs none of them then. `record` is told what
        becomes of the request; one of our own, from a model to another, has none.
        """
        if record is not None:
            record.num_prompt_tokens = sum(len(row.fields["input_ids"]) for row in rows)
            record.asked_ns = record.now_ns()
        for row in rows:
            check_request(GenerationRequest(id=0, **row.fields), self.worker.limits)
        answers = [answer(row) for row in rows]
        name = read_lora_name(request.parameters())
        adapters = parse_lora(get, name, len(rows), Path(self._adapters.name))
        for row, adapter in zip(rows, adapters, strict=True):
            row.fields.update(adapter)
        try:
            _Request(self, request, sender, rows, answers, record).start()
        except WorkerFailed:
            discard(row.fields for row in rows)
            raise

    def close(self) -> None:
        """Delete the adapters that nobody has read, once no request runs."""
        self._adapters.cleanup()

    def stop(self, request_id: str) -> bool:
        """End the requests of this id now; false when there is none."""
        with self._changed:
            running = list(self._by_id.get(request_id, ())) if request_id else []
        for each in running:
            each.stop()
        return bool(running)

    def wait_below(self, num_rows: int) -> None:
        """Return when fewer rows run."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_rows < num_rows)

    def enter(self, request: _Request) -> None:
        """Count a request that runs from now on."""
        with self._changed:
            self._num_rows += request.num_rows
            if request.id:
                self._by_id.setdefault(request.id, []).append(request)

    def leave(self, request: _Request) -> None:
        """Count it no more."""
        with self._changed:
            self._num_rows -= request.num_rows
            same_id = self._by_id.get(request.id, [])
            if request in same_id:
                same_id.remove(request)
            if not same_id:
                self._by_id.pop(request.id, None)
            self._changed.notify_all()


class _Request:
    """One request in flight."""

    def __init__(
        self,
        all_: InFlight,
        request: Any,
        sender: Any,
        rows: Sequence[EngineRow],
        answers: Sequence[Answer],
        record: RequestRecord | None,
    ) -> None:
        self.id = request.request_id()
        self.num_rows = len(rows)
        self._all = all_
        self._wanted = request.requested_output_names()
        self._is_internal = self.id.startswith(INTERNAL_ID_PREFIX)
        self._sender = sender
        self._rows = rows
        self._answers = answers
        self._record = record
        self._untold: list[dict[str, Array]] = []
        self._lock = threading.RLock()
        self._is_open = True
        self._engine_ids: list[int] = []
        self._watched: Watched | None = None

    def start(self) -> None:
        """Submit all rows, or none."""
        worker = self._all.worker
        with self._lock:
            try:
                for index, row in enumerate(self._rows):
                    self._engine_ids.append(worker.submit(row.fields, self._handler(index)))
            except WorkerFailed:
                self._cancel_engine()
                self._is_open = False
                raise
            self._all.enter(self)
            if self._is_internal:
                # Until a business-logic request has its first response, it holds one of the 32
                # threads that also carry the other requests' responses (seen with Triton 2.51).
                if self._all.is_decoupled:
                    self._sender.send(pb_utils.InferenceResponse([]))
            else:
                self._watched = self._all.watch.add(self._sender, self.stop)

    def stop(self) -> None:
        """End now: free the slots, tell what has come, and close the response stream."""
        with self._lock:
            if not self._is_open:
                return
            self._cancel_engine()
            if self._record is not None:
                self._record.end("cancelled")
            self._untold += [tensors for answer in self._answers for tensors in answer.cut()]
            self._flush(is_last=True)

    def fail(self, why: str, *, was_refused: bool = False) -> None:
        """End all rows with an error."""
        with self._lock:
            if not self._is_open:
                return
            self._cancel_engine()
            if self._record is not None:
                self._record.end("rejected" if was_refused else "error", why)
            if self._is_internal:
                self._close(self._response(pack_failure(why, was_refused=was_refused)))
                return
            self._is_open = False
            self._forget()
            send_error(self._sender, why)

    def _handler(self, row: int) -> Callable[[SequenceUpdate], None]:
        def take(update: SequenceUpdate) -> None:
            try:
                self._take(row, update)
            except Exception as error:  # or the caller would wait for ever
                write_traceback()
                self.fail(f"the answer could not be told: {type(error).__name__}: {error}")

        return take

    def _take(self, row: int, update: SequenceUpdate) -> None:
        with self._lock:
            if not self._is_open:
                return
            if update.error is not None:
                self.fail(update.error, was_refused=update.refused)
                return
            tensors = self._answers[row].take(update)
            if tensors is not None:
                self._untold.append(tensors)
            is_last = all(each.is_done for each in self._answers)
            if self._record is not None:
                self._note(self._record, row, update, is_last=is_last)
            self._flush(is_last=is_last)

    def _note(
        self, record: RequestRecord, row: int, update: SequenceUpdate, *, is_last: bool
    ) -> None:
        if update.token_ids:
            record.note_tokens((row, update.sequence_index), len(update.token_ids))
        if update.finish_reason == "length":
            record.was_cut = True
        if is_last:
            record.complete()

    def _flush(self, *, is_last: bool) -> None:
        """Send what is due; a model that is not decoupled sends everything at the end."""
        if not self._all.is_decoupled:
            if is_last:
                self._close(self._response(self._merged()))
            return
        untold, self._untold = self._untold, []
        for number, tensors in enumerate(untold, 1):
            if is_last and number == len(untold):
                self._close(self._response(tensors))
            else:
                self._sender.send(self._response(tensors))
        if is_last and self._is_open:
            self._close()

    def _merged(self) -> dict[str, Array]:
        if len(self._untold) > 1:
            return merge_answers(self._untold)
        return self._untold[0] if self._untold else {}

    def _response(self, tensors: dict[str, Array]) -> Any:
        # Those that were not asked for must not be sent (python_stub.py), and need not be made.
        wanted = [each for each in tensors if each in self._wanted]
        return pb_utils.InferenceResponse([pb_utils.Tensor(each, tensors[each]) for each in wanted])

    def _close(self, response: Any = None) -> None:
        self._is_open = False
        self._forget()
        if response is None:
            self._sender.send(flags=_FINAL)
        else:
            self._sender.send(response, flags=_FINAL)

    def _forget(self) -> None:
        if self._watched is not None:
            self._all.watch.remove(self._watched)
            # It knows this request, which would live on in that circle, and with it Triton's.
            self._watched = None
        for engine_id in self._engine_ids:
            self._all.worker.forget(engine_id)
        self._all.leave(self)
        discard(row.fields for row in self._rows)

    def _cancel_engine(self) -> None:
        for engine_id in self._engine_ids:
            self._all.worker.cancel(engine_id)


def refuse(request: Any, sender: Any, error: InvalidRequest | WorkerFailed) -> None:
    """End a request that does not run, so that a text model can tell whose fault that is."""
    if not request.request_id().startswith(INTERNAL_ID_PREFIX):
        send_error(sender, str(error))
        return
    packed = pack_failure(str(error), was_refused=isinstance(error, InvalidRequest))
    tensors = [pb_utils.Tensor(name, value) for name, value in packed.items()]
    wanted = pick_requested(request.requested_output_names(), tensors)
    sender.send(pb_utils.InferenceResponse(wanted), flags=_FINAL)


def send_error(sender: Any, why: str) -> None:
    """End a request with an error response."""
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(why))
    sender.send(response, flags=_FINAL)
