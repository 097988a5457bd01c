"""The `tensorrt_llm` model of every Python engine kind: tokens in, tokens out.

Each row of a request becomes one generation request of the engine worker; its updates become
responses as they come (`streaming`) or one response at the end of a sequence. A caller who cancels,
or sends `stop` with the same request id, frees the slots of all the request's rows.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .cancel_watch import CancelWatch, Watched
from .engine import GenerationRequest, InvalidRequest, SequenceUpdate, check_request
from .engine_metrics import EngineMetrics
from .parameters import Parameters
from .python_stub import pick_requested
from .tensors import (
    INTERNAL_ID_PREFIX,
    UNDERSTOOD,
    Array,
    RowRequest,
    pack_failure,
    pack_sequences,
    parse_rows,
    refuse_set,
)
from .worker_process import WorkerFailed, WorkerProcess


class TritonPythonModel:
    """Triton's hooks."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        self._not_understood = sorted(set(parameters.input_names) - UNDERSTOOD)
        self._engine_kind = parameters.text("engine_kind")
        self._exclude_input = parameters.flag("exclude_input_in_output", False)
        self._requests: dict[str, _Request] = {}
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

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._begin(request, sender)
            except (InvalidRequest, WorkerFailed) as error:
                send_error(sender, str(error))

    def finalize(self) -> None:
        self._watch.close()
        self._worker.close()
        self._metrics.close()

    def _begin(self, request: Any, sender: Any) -> None:
        def get(name: str) -> Array | None:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return None if tensor is None else tensor.as_numpy()

        if _is_set(get("stop")):
            self._stop(request.request_id(), sender)
            return
        refuse_set(get, self._not_understood, self._engine_kind)
        rows = parse_rows(get, exclude_input=self._exclude_input)
        for row in rows:
            check_request(GenerationRequest(id=0, **row.fields), self._limits)
        answer = _Request(self, request, sender, _is_set(get("streaming")), rows)
        answer.start()

    def _stop(self, request_id: str, sender: Any) -> None:
        with self._lock:
            running = self._requests.get(request_id) if request_id else None
        if running is None:
            raise InvalidRequest(
                f"stop names the request id {request_id!r}, which is not running; send it with "
                "the id of a request in flight"
            )
        running.stop()
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class _Request:
    """One request in flight."""

    def __init__(
        self,
        model: TritonPythonModel,
        request: Any,
        sender: Any,
        is_streaming: bool,
        rows: list[RowRequest],
    ) -> None:
        self._model = model
        self._request_id = request.request_id()
        self._wanted = request.requested_output_names()
        self._is_internal = self._request_id.startswith(INTERNAL_ID_PREFIX)
        self._sender = sender
        self._is_streaming = is_streaming
        self._rows = rows
        self._lock = threading.RLock()
        self._open = {row.batch_index for row in rows}
        self._engine_ids: list[int] = []
        self._watched: Watched | None = None

    def start(self) -> None:
        """Submit all rows, or none."""
        model = self._model
        with self._lock:
            try:
                for row in self._rows:
                    answer = _RowAnswer(self, row, self._is_streaming)
                    self._engine_ids.append(model._worker.submit(row.fields, answer.take))
            except WorkerFailed:
                self._cancel_engine()
                self._open.clear()
                raise
            if self._request_id:
                with model._lock:
                    model._requests[self._request_id] = self
            if self._is_internal:
                # Until a business-logic request has its first response, it holds one of the 32
                # threads that also carry the other requests' responses (seen with Triton 2.51).
                self._sender.send(pb_utils.InferenceResponse([]))
            else:
                self._watched = model._watch.add(self._sender, self.stop)

    def stop(self) -> None:
        """End now: free the slots and close the response stream."""
        with self._lock:
            if self._open:
                self._cancel_engine()
                self._close()

    def send(self, tensors: dict[str, Array], *, is_last_of_row: int | None = None) -> None:
        """One response; `is_last_of_row` tells the row that it ends."""
        with self._lock:
            if not self._open:
                return
            response = self._response(tensors)
            if is_last_of_row is not None:
                self._open.discard(is_last_of_row)
            if self._open:
                self._sender.send(response)
            else:
                self._close(response)

    def fail(self, why: str) -> None:
        """End all rows with an error."""
        with self._lock:
            if not self._open:
                return
            self._cancel_engine()
            if self._is_internal:
                self._close(self._response(pack_failure(why)))
                return
            self._open.clear()
            self._forget()
            send_error(self._sender, why)

    def _response(self, tensors: dict[str, Array]) -> Any:
        made = [pb_utils.Tensor(name, value) for name, value in tensors.items()]
        return pb_utils.InferenceResponse(pick_requested(self._wanted, made))

    def _close(self, response: Any = None) -> None:
        self._open.clear()
        self._forget()
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None:
            self._sender.send(flags=final)
        else:
            self._sender.send(response, flags=final)

    def _forget(self) -> None:
        if self._watched is not None:
            self._model._watch.remove(self._watched)
        with self._model._lock:
            if self._model._requests.get(self._request_id) is self:
                del self._model._requests[self._request_id]
        for engine_id in self._engine_ids:
            self._model._worker.forget(engine_id)

    def _cancel_engine(self) -> None:
        for engine_id in self._engine_ids:
            self._model._worker.cancel(engine_id)


class _RowAnswer:
    """Turns the updates of one row into responses."""

    def __init__(self, request: _Request, row: RowRequest, is_streaming: bool) -> None:
        self._request = request
        self._row = row
        self._is_streaming = is_streaming and not row.is_beam_search
        num_sequences = int(row.fields["num_return_sequences"])
        self._tokens: list[list[int]] = [[] for _ in range(num_sequences)]
        self._log_probs: list[list[float]] = [[] for _ in range(num_sequences)]
        self._cum: list[float] = [0.0] * num_sequences
        self._unfinished = set(range(num_sequences))

    def take(self, update: SequenceUpdate) -> None:
        if update.error is not None:
            self._request.fail(update.error)
            return
        sequence = update.sequence_index
        self._tokens[sequence] += update.token_ids
        self._log_probs[sequence] += update.log_probs
        if update.cum_log_prob is not None:
            self._cum[sequence] = update.cum_log_prob
        if update.finish_reason is not None:
            self._unfinished.discard(sequence)
        is_last = not self._unfinished
        if self._row.is_beam_search:
            if is_last:
                self._respond(range(len(self._tokens)), is_last=True)
        elif self._is_streaming or update.finish_reason is not None:
            self._respond([sequence], is_last=is_last)

    def _respond(self, sequences: Sequence[int], *, is_last: bool) -> None:
        row = self._row
        tokens = [self._tokens[each] for each in sequences]
        num_new = sum(len(each) for each in tokens)
        if not self._is_streaming and not row.exclude_input:
            tokens = [[*row.fields["input_ids"], *each] for each in tokens]
        log_probs = [self._log_probs[each] for each in sequences]
        tensors = pack_sequences(tokens, log_probs, row.pad_id)
        if row.fields.get("return_log_probs"):
            cum = [[self._cum[each] for each in sequences]]
            tensors["cum_log_probs"] = np.array(cum, dtype=np.float32)
        else:
            del tensors["output_log_probs"]
        tensors["batch_index"] = _number(row.batch_index)
        tensors["sequence_index"] = _number(sequences[0])
        if row.tells_num_input_tokens:
            tensors["num_input_tokens"] = _number(len(row.fields["input_ids"]))
        if row.tells_num_output_tokens:
            tensors["num_output_tokens"] = _number(num_new)
        for each in sequences:
            self._tokens[each], self._log_probs[each] = [], []
        self._request.send(tensors, is_last_of_row=row.batch_index if is_last else None)


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
        "num_threads": parameters.number("num_threads", 0),
    }


def send_error(sender: Any, why: str) -> None:
    """End a request with an error response."""
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(why))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _is_set(tensor: Array | None) -> bool:
    return tensor is not None and bool(np.any(tensor))


def _number(value: int) -> Array:
    return np.array([[value]], dtype=np.int32)
