"""The `tensorrt_llm` model for all Python engine kinds, which receives and returns token ids.

Each instance starts an engine worker. With `instances_share_engine`, only the first instance starts
a worker, and the other instances connect to that worker. Several instances are useful because a
GPU may generate more tokens than one Python stub can send. The stub needs about 0.1 ms of CPU time
per response.

Each row of a request becomes one generation request for the engine worker. The number of responses
depends on the model and the request:

- A decoupled model sends one response per update if the request sets `streaming`, and otherwise
  one response per sequence. With beam search, it always sends one response per row.
- A model that is not decoupled sends one response with all rows.

The engine frees the slots of all rows if the client cancels the request or sends a stop request
with the same id.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..engine import InvalidRequest
from ..engines.kinds import find_kind, list_supported_inputs, reject_tensors
from ..engines.worker_config import embedding_config
from ..pulse import PulseFile, PulseWriter, start_beating
from ..requests.cancel_watch import CancelWatch
from ..requests.in_flight import InFlight, reject
from ..requests.request_record import RequestLedger, RequestRecord
from ..requests.responses import ResponseBuilder, RowResponseBuilder
from ..requests.stop_requests import StopHandler
from ..telemetry.engine_metrics import EngineMetrics
from ..triton.drain_check import reject_if_draining
from ..triton.parameters import Parameters
from ..triton.stub_workarounds import read_inputs
from ..triton.tensors import (
    INTERNAL_ID_PREFIX,
    Array,
    GetTensor,
    parse_rows,
)
from ..worker.worker_link import SharedWorkerClient, WorkerFailed, worker_socket_name
from ..worker.worker_process import WorkerProcess


class TritonPythonModel:
    """The model that Triton's Python backend loads and calls.

    `stream_input` is the name of the input that requests a streamed response.
    """

    stream_input = "streaming"

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        self._start(parameters, list_supported_inputs(parameters.text("engine_kind")))

    def _start(self, parameters: Parameters, supported_inputs: Container[str]) -> None:
        """Start the model with `parameters`, and start its engine worker or connect to it."""
        self._unsupported_inputs = [
            each for each in parameters.input_names if each not in supported_inputs
        ]
        self._name = parameters.model_name
        self._engine_kind = parameters.text("engine_kind")
        self._exclude_input = parameters.flag("exclude_input_in_output", False)
        self._is_decoupled = parameters.is_decoupled
        self._num_slots = parameters.number("max_num_seqs", at_least=1)
        self._has_queue_policy = parameters.has_queue_policy
        period_ms = parameters.number("cancellation_check_period_ms", 100, at_least=1)
        self._ledger = RequestLedger(
            pb_utils,
            parameters.model_name,
            parameters.model_version,
            instance=parameters.instance,
        )
        self._metrics = _create_metrics(parameters) if parameters.has_engine else None
        self._worker_pulse: PulseFile | None = None
        try:
            self._worker = self._start_worker(parameters)
        except WorkerFailed as error:
            raise pb_utils.TritonModelException(str(error)) from error
        self._watch = CancelWatch(period_ms / 1000)
        self._in_flight = InFlight(self._worker, self._watch, is_decoupled=self._is_decoupled)
        self._stop_handler = StopHandler(parameters.model_name, self._in_flight)
        start_beating("model", parameters.model_name)

    def _start_worker(self, parameters: Parameters) -> WorkerProcess | SharedWorkerClient:
        """Start a worker for this instance, or connect to the first instance's worker."""
        if parameters.shares_engine and self._has_queue_policy:
            raise WorkerFailed(
                "queue priorities and timeouts require a single instance, but "
                f"{parameters.num_instances} instances share the engine; set "
                "tensorrt_llm_instance_count=1"
            )
        if self._metrics is None:
            client = SharedWorkerClient(worker_socket_name(parameters.model_name))
            client.wait_until_open()
            return client
        metrics = self._metrics
        self._worker_pulse = PulseFile("worker", parameters.model_name)
        pulse = PulseWriter(self._worker_pulse.path)

        def publish_state(is_up: bool, num_restarts: int) -> None:
            if not is_up:
                pulse.fail()
            metrics.publish_state(is_up, num_restarts)

        worker = WorkerProcess(
            self._engine_kind,
            {
                **engine_config(parameters),
                "guests": _name_socket(parameters),
                "for_guests": {
                    "excludes_input": self._exclude_input,
                    "num_engines": parameters.num_engines,
                },
                "pulse": str(self._worker_pulse.path or ""),
            },
            python=parameters.text("engine_python", ""),
            on_stats=metrics.publish,
            on_state=publish_state,
        )
        worker.start()
        return worker

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._handle(request, sender)
            except (InvalidRequest, WorkerFailed) as error:
                reject(request, sender, error)
        if self._has_queue_policy:
            # Wait for a free slot. Until then, further requests stay in Triton's queue, which
            # applies priorities and timeouts.
            self._in_flight.wait_below(self._num_slots)

    def finalize(self) -> None:
        self._watch.close()
        self._stop_handler.close()
        self._worker.close()
        if self._worker_pulse is not None:
            self._worker_pulse.close()
        if self._metrics is not None:
            self._metrics.close()
        self._ledger.close()
        self._in_flight.close()

    def _handle(self, request: Any, sender: Any) -> None:
        get = read_inputs(request).get
        if _is_set(get("stop")):
            self._stop_handler.handle(request.request_id(), sender)
            return
        is_internal = request.request_id().startswith(INTERNAL_ID_PREFIX)
        record = None if is_internal else self._ledger.open_record(request)
        try:
            self._start_request(request, sender, get, record)
        except (InvalidRequest, WorkerFailed) as error:
            if record is not None:
                record.reject(error)
            raise

    def _start_request(
        self, request: Any, sender: Any, get: GetTensor, record: RequestRecord | None
    ) -> None:
        reject_if_draining(self._name)
        arrival_time_ns = record.arrival_ns if record else time.monotonic_ns()
        reject_tensors(get, self._unsupported_inputs, self._engine_kind)
        is_streaming = _is_set(get(self.stream_input))
        if is_streaming and not self._is_decoupled:
            raise InvalidRequest(
                f"{self.stream_input} requires a decoupled model, but decoupled_mode is false; "
                f"omit {self.stream_input}, or set decoupled_mode=true"
            )
        rows = self._parse(get, is_streaming)
        if record is not None and self._ledger.logs_prompts:
            record.prompt = [list(row.fields["input_ids"]) for row in rows]
        new_response_builder = partial(
            self._new_response_builder, arrival_time_ns=arrival_time_ns, is_streaming=is_streaming
        )
        self._in_flight.start(request, sender, get, rows, new_response_builder, record)

    def _parse(self, get: GetTensor, is_streaming: bool) -> Sequence[Any]:
        """Return the rows of the request.

        Each row implements `EngineRow`. The caller also passes the row to `_new_response_builder`,
        so subclasses can return other row types.
        """
        return parse_rows(get, exclude_input=self._exclude_input)

    def _new_response_builder(
        self, row: Any, *, arrival_time_ns: int, is_streaming: bool
    ) -> ResponseBuilder:
        """Return the response builder for a row that `_parse` returned."""
        return RowResponseBuilder(row, arrival_time_ns, is_streaming=is_streaming)


def _create_metrics(parameters: Parameters) -> EngineMetrics:
    return EngineMetrics(
        pb_utils,
        parameters.model_name,
        parameters.model_version,
        parameters.number("max_num_seqs"),
        parameters.instance_name if parameters.num_engines > 1 else "",
    )


def _name_socket(parameters: Parameters) -> str:
    """Return the name of the worker's socket for other models, other instances and the gateway.

    If the model has a queue policy, return an empty name. The worker then accepts no connections
    from them.
    """
    if parameters.has_queue_policy:
        return ""
    engine = parameters.instance if parameters.num_engines > 1 else 0
    return worker_socket_name(parameters.model_name, engine)


def engine_config(parameters: Parameters) -> dict[str, Any]:
    """Return the engine worker's configuration.

    Raise `WorkerFailed` if the engine kind is unknown or has no engine worker, or `ValueError` if a
    parameter is missing or invalid.
    """
    name = parameters.text("engine_kind")
    try:
        kind = find_kind(name)
    except ValueError as error:
        raise WorkerFailed(f"the model cannot be served: {error}") from error
    if kind.load_embedder is not None and parameters.text("embedding", ""):
        return embedding_config(parameters)
    if kind.worker_config is None:
        raise WorkerFailed(
            f"the {name} engine kind has no engine worker, because it runs in a Triton backend"
        )
    return kind.worker_config(parameters)


def _is_set(tensor: Array | None) -> bool:
    return tensor is not None and bool(np.any(tensor))
