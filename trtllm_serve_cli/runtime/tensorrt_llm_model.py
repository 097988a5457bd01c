"""The `tensorrt_llm` model of every Python engine kind: tokens in, tokens out.

Each row of a request becomes one generation request of the engine worker. A decoupled model answers
as updates come (`streaming`) or once for each sequence; one that is not answers once, all rows
together. A caller who cancels, or sends `stop` with the same request id, frees the slots of all the
request's rows.
"""

from __future__ import annotations

import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .answers import Answer, RowAnswer, merge_answers
from .cancel_watch import CancelWatch, Watched
from .engine import GenerationRequest, InvalidRequest, SequenceUpdate, check_request
from .engine_metrics import EngineMetrics
from .lora_request import discard, parse_lora, read_lora_name
from .parameters import Parameters
from .python_stub import pick_requested
from .tensors import (
    INTERNAL_ID_PREFIX,
    UNDERSTOOD,
    Array,
    EngineRow,
    GetTensor,
    pack_failure,
    parse_rows,
    refuse_set,
)
from .worker_process import WorkerFailed, WorkerProcess

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Triton's hooks."""

    def initialize(self, args: dict[str, str]) -> None:
        self._start(Parameters(args), UNDERSTOOD)

    def _start(self, parameters: Parameters, understood: Container[str]) -> None:
        """Start the engine worker that `parameters` describe."""
        self._not_understood = [each for each in parameters.input_names if each not in understood]
        self._engine_kind = parameters.text("engine_kind")
        self._exclude_input = parameters.flag("exclude_input_in_output", False)
        self._is_decoupled = parameters.is_decoupled
        self._slots = Slots(parameters.number("max_num_seqs"), parameters.max_queue_size)
        self._queue_has_order = parameters.queue_has_order
        self._requests: dict[str, list[_Request]] = {}
        self._lock = threading.Lock()
        self._metrics = EngineMetrics(
            pb_utils,
            parameters.model_name,
            parameters.model_version,
            parameters.number("max_num_seqs"),
        )
        self._worker = WorkerProcess(
            self._engine_kind,
            engine_config(parameters),
            python=parameters.text("engine_python", ""),
            on_stats=self._metrics.publish,
            on_state=self._metrics.tell_state,
        )
        try:
            self._limits = self._worker.start()
        except WorkerFailed as error:
            raise pb_utils.TritonModelException(str(error)) from error
        period_ms = parameters.number("cancellation_check_period_ms", 100)
        self._watch = CancelWatch(period_ms / 1000)
        self._adapters = tempfile.TemporaryDirectory(prefix="tllm-lora-")

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._begin(request, sender)
            except (InvalidRequest, WorkerFailed) as error:
                send_error(sender, str(error))
        if self._queue_has_order:
            # What waits has to wait in Triton's queue, whose priorities and timeouts then count.
            self._slots.wait_for_free()

    def finalize(self) -> None:
        self._watch.close()
        self._worker.close()
        self._metrics.close()
        self._adapters.cleanup()

    def _begin(self, request: Any, sender: Any) -> None:
        arrival_time_ns = time.monotonic_ns()

        def get(name: str) -> Array | None:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return None if tensor is None else tensor.as_numpy()

        if _is_set(get("stop")):
            self._stop(request.request_id(), sender)
            return
        refuse_set(get, self._not_understood, self._engine_kind)
        is_streaming = _is_set(get("streaming"))
        if is_streaming and not self._is_decoupled:
            raise InvalidRequest(
                "streaming needs a decoupled model, and this one answers each request once "
                "(decoupled_mode is false); leave it out, or serve with decoupled_mode=true"
            )
        rows, answers = self._parse(get, arrival_time_ns, is_streaming)
        for row in rows:
            check_request(GenerationRequest(id=0, **row.fields), self._limits)
        name = read_lora_name(request.parameters())
        adapters = parse_lora(get, name, len(rows), Path(self._adapters.name))
        for row, adapter in zip(rows, adapters, strict=True):
            row.fields.update(adapter)
        try:
            _Request(self, request, sender, answers).start(rows)
        except (InvalidRequest, WorkerFailed):
            discard(row.fields for row in rows)
            raise

    def _parse(
        self, get: GetTensor, arrival_time_ns: int, is_streaming: bool
    ) -> tuple[Sequence[EngineRow], Sequence[Answer]]:
        """What to run for a request, and for each how to answer it."""
        rows = parse_rows(get, exclude_input=self._exclude_input)
        return rows, [RowAnswer(row, arrival_time_ns, is_streaming=is_streaming) for row in rows]

    def _stop(self, request_id: str, sender: Any) -> None:
        with self._lock:
            running = list(self._requests.get(request_id, ())) if request_id else []
        if not running:
            raise InvalidRequest(
                f"stop names the request id {request_id!r}, which is not running; send it with "
                "the id of a request in flight"
            )
        for each in running:
            each.stop()
        # Upstream's clients wait for an answer to the stop itself: one without outputs.
        sender.send(pb_utils.InferenceResponse([]), flags=_FINAL)


class Slots:
    """Counts the rows in flight: `number` run, `max_queue_size` more may wait (0: any number)."""

    def __init__(self, number: int, max_queue_size: int) -> None:
        self._number = number
        self._max_queue_size = max_queue_size
        self._num_taken = 0
        self._changed = threading.Condition()

    def take(self, number: int) -> None:
        """Raises `InvalidRequest` when too many wait already."""
        limit = self._number + self._max_queue_size
        with self._changed:
            if self._max_queue_size and self._num_taken + number > limit:
                # Upstream says it one way from Triton's queue, another from its own.
                raise InvalidRequest(
                    f"Exceeds maximum queue size. Maximum queue size of {self._max_queue_size} has "
                    "been reached, please try again later"
                )
            self._num_taken += number

    def give_back(self, number: int) -> None:
        with self._changed:
            self._num_taken -= number
            self._changed.notify_all()

    def wait_for_free(self) -> None:
        """Return when a slot is free."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_taken < self._number)


class _Request:
    """One request in flight."""

    def __init__(
        self, model: TritonPythonModel, request: Any, sender: Any, answers: Sequence[Answer]
    ) -> None:
        self._model = model
        self._request_id = request.request_id()
        self._wanted = request.requested_output_names()
        self._is_internal = self._request_id.startswith(INTERNAL_ID_PREFIX)
        self._sender = sender
        self._answers = answers
        self._rows: Sequence[EngineRow] = ()
        self._untold: list[dict[str, Array]] = []
        self._lock = threading.RLock()
        self._is_open = True
        self._engine_ids: list[int] = []
        self._watched: Watched | None = None

    def start(self, rows: Sequence[EngineRow]) -> None:
        """Submit all rows, or none."""
        model = self._model
        model._slots.take(len(rows))
        self._rows = rows
        with self._lock:
            try:
                for row, answer in zip(rows, self._answers, strict=True):
                    handler = self._handler(answer)
                    self._engine_ids.append(model._worker.submit(row.fields, handler))
            except WorkerFailed:
                self._cancel_engine()
                self._is_open = False
                model._slots.give_back(len(rows))
                raise
            if self._request_id:
                with model._lock:
                    model._requests.setdefault(self._request_id, []).append(self)
            if self._is_internal:
                # Until a business-logic request has its first response, it holds one of the 32
                # threads that also carry the other requests' responses (seen with Triton 2.51).
                if model._is_decoupled:
                    self._sender.send(pb_utils.InferenceResponse([]))
            else:
                self._watched = model._watch.add(self._sender, self.stop)

    def stop(self) -> None:
        """End now: free the slots, tell what has come, and close the response stream."""
        with self._lock:
            if not self._is_open:
                return
            self._cancel_engine()
            self._untold += [tensors for answer in self._answers for tensors in answer.cut()]
            self._flush(is_last=True)

    def fail(self, why: str) -> None:
        """End all rows with an error."""
        with self._lock:
            if not self._is_open:
                return
            self._cancel_engine()
            if self._is_internal and self._model._is_decoupled:
                self._close(self._response(pack_failure(why)))
                return
            self._is_open = False
            self._forget()
            send_error(self._sender, why)

    def _handler(self, answer: Answer) -> Callable[[SequenceUpdate], None]:
        def take(update: SequenceUpdate) -> None:
            try:
                self._take(answer, update)
            except Exception as error:  # or the caller would wait for ever
                traceback.print_exc()
                self.fail(f"the answer could not be told: {type(error).__name__}: {error}")

        return take

    def _take(self, answer: Answer, update: SequenceUpdate) -> None:
        with self._lock:
            if not self._is_open:
                return
            if update.error is not None:
                self.fail(update.error)
                return
            tensors = answer.take(update)
            if tensors is not None:
                self._untold.append(tensors)
            self._flush(is_last=all(each.is_done for each in self._answers))

    def _flush(self, *, is_last: bool) -> None:
        """Send what is due; a model that is not decoupled sends everything at the end."""
        if not self._model._is_decoupled:
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
        made = [pb_utils.Tensor(name, value) for name, value in tensors.items()]
        return pb_utils.InferenceResponse(pick_requested(self._wanted, made))

    def _close(self, response: Any = None) -> None:
        self._is_open = False
        self._forget()
        if response is None:
            self._sender.send(flags=_FINAL)
        else:
            self._sender.send(response, flags=_FINAL)

    def _forget(self) -> None:
        model = self._model
        if self._watched is not None:
            model._watch.remove(self._watched)
        with model._lock:
            same_id = model._requests.get(self._request_id, [])
            if self in same_id:
                same_id.remove(self)
            if not same_id:
                model._requests.pop(self._request_id, None)
        for engine_id in self._engine_ids:
            model._worker.forget(engine_id)
        model._slots.give_back(len(self._answers))
        discard(row.fields for row in self._rows)

    def _cancel_engine(self) -> None:
        for engine_id in self._engine_ids:
            self._model._worker.cancel(engine_id)


def engine_config(parameters: Parameters) -> dict[str, Any]:
    """What the engine worker gets, out of the parameters of `config.pbtxt`."""
    return {
        "engine_dir": parameters.text("gpt_model_path"),
        "max_batch_size": parameters.number("max_num_seqs"),
        "max_beam_width": parameters.number("max_beam_width"),
        "max_seq_len": parameters.number("max_seq_len"),
        "max_num_tokens": parameters.number("max_num_tokens"),
        "max_tokens_in_paged_kv_cache": parameters.number("max_tokens_in_paged_kv_cache"),
        "enable_kv_cache_reuse": parameters.flag("enable_kv_cache_reuse", True),
        "vocab_size": parameters.number("vocab_size"),
        "lora_prefetch_dir": parameters.text("lora_prefetch_dir", ""),
        "max_loras": parameters.number("max_loras", 4),
        "lora_cache_max_adapter_size": parameters.number("lora_cache_max_adapter_size", 64),
        "lora_cache_host_memory_bytes": parameters.number("lora_cache_host_memory_bytes", 1 << 30),
        "num_threads": parameters.number("num_threads", 0),
        "num_draft_tokens": parameters.number("num_draft_tokens", 0),
        "draft_model_dir": parameters.text("draft_model_dir", ""),
    }


def send_error(sender: Any, why: str) -> None:
    """End a request with an error response."""
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(why))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _is_set(tensor: Array | None) -> bool:
    return tensor is not None and bool(np.any(tensor))
