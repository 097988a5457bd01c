"""An in-process Triton: KServe over gRPC and HTTP on real sockets, without engines.

with FakeTriton(ttft_s=0.05) as triton:
    generate(triton.endpoint, "ensemble", GenerateRequest("go"))
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.fakes.triton.answers import (
    Answer,
    ModelError,
    Outputs,
    Request,
    ServerError,
    Silence,
    follow_prompt,
)
from tests.fakes.triton.over_http import serve_http
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.repository.model.contract import load_contracts

VERSION = "2.51.0"
# Models whose names end otherwise are text models.
PARTS = ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls")

# How often a response that is held checks whether its request has been stopped.
_STOP_PERIOD_S = 0.02


@dataclass
class FakeTriton:
    """The behaviour of the server, and its calls. All fields may be changed while it runs.

    - `answer` yields the responses (see `answers`). The first is sent after `ttft_s`, each further
      one after `itl_s`, and none while `hold` is cleared, which happens at request `sticks_at`.
      Requests whose number is a multiple of `fails_every` fail. Numbers start at 1.
    - `models` is the index of the repository. Models with any name respond unless they are in
      `unloaded`. `tensorrt_llm`, with or without a prefix, accepts token ids; others accept text.
      Each model has `versions`.
    - `parameters` and `input_names` are part of the model configuration; entries of
      `parameters_of` and `inputs_of` replace them for one model. `types` are the data types of
      inputs.
    - `metrics_pages` are the contents of the metrics page in turn; the last one stays.
      `metrics_length` overrides its `Content-Length`.
    - `certificate` and its key are the files for gRPC with TLS.
    - `ending_s` is the time for which a gRPC stream stays open after an error.

    `requests` are the requests to models. `stopped` are the ids that stop requests contained; such
    a request ends without another response. If `ignores_stops` is true, both requests continue.
    `calls` are the path or method of every call, and its headers.
    """

    answer: Answer = follow_prompt
    ttft_s: float = 0.0
    itl_s: float = 0.0
    fails_every: int = 0
    sticks_at: int = 0
    ending_s: float = 0.0
    ignores_stops: bool = False
    is_decoupled: bool = True
    models: tuple[str, ...] = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble")
    unloaded: set[str] = field(default_factory=lambda: {"nope"})
    versions: tuple[str, ...] = ("1",)
    parameters: dict[str, str] = field(default_factory=lambda: {"vocab_size": "500"})
    parameters_of: dict[str, dict[str, str]] = field(default_factory=dict)
    input_names: tuple[str, ...] = ()
    inputs_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    metrics_pages: list[str] = field(
        default_factory=lambda: ["# TYPE nv_cpu_utilization gauge\nnv_cpu_utilization 0.5\n"]
    )
    metrics_length: int | None = None
    certificate: tuple[Path, Path] | None = None

    endpoint: Endpoint = field(default_factory=Endpoint, init=False)
    requests: list[Request] = field(default_factory=list, init=False)
    stopped: set[str] = field(default_factory=set, init=False)
    calls: list[tuple[str, dict[str, str]]] = field(default_factory=list, init=False)
    hold: threading.Event = field(default_factory=threading.Event, init=False)
    cancelled: threading.Event = field(default_factory=threading.Event, init=False)
    closing: threading.Event = field(default_factory=threading.Event, init=False)
    _open: ExitStack = field(default_factory=ExitStack, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __enter__(self) -> FakeTriton:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def received(self) -> list[dict[str, Any]]:
        """The inputs of each request."""
        return [request.inputs for request in self.requests]

    def start(self, http_port: int = 0, grpc_port: int | None = 0) -> None:
        """Listen on loopback; port 0 is any free one. `grpc_port=None` starts without gRPC."""
        self.hold.set()
        self._open.callback(self.release)
        grpc = ""
        if grpc_port is not None:
            # Launch tests start this process hundreds of times; importing grpc is slow.
            from tests.fakes.triton.over_grpc import serve_grpc

            grpc = self._open.enter_context(serve_grpc(self, grpc_port))
        # HTTP is last, because it answers whether the server is ready.
        http = self._open.enter_context(serve_http(self, http_port))
        self.endpoint = Endpoint(grpc=grpc, http=http, metrics=http)

    def stop(self) -> None:
        """End like a server that dies: responses in progress are aborted. May be repeated."""
        self._open.close()

    def release(self) -> None:
        """Wake up all waiting answers."""
        self.closing.set()
        self.hold.set()

    def respond(self, request: Request) -> Iterator[Outputs]:
        """Yield the responses at their times, or raise an error."""
        if request.inputs.get("stop"):
            self.stopped.add(request.id)
            if self.ignores_stops:
                self.closing.wait()
            yield {}
            return
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
        if number == self.sticks_at:
            self.hold.clear()
        self.check_loaded(request.model)
        if self.fails_every and number % self.fails_every == 0:
            raise ModelError("out of cheese")
        try:
            for index, outputs in enumerate(self.answer(request)):
                time.sleep(self.itl_s if index else self.ttft_s)
                while not (self.hold.wait(_STOP_PERIOD_S) or self._is_stopped(request)):
                    pass
                if self._is_stopped(request):
                    return
                yield outputs
        except Silence:
            self.closing.wait()

    def _is_stopped(self, request: Request) -> bool:
        return request.id in self.stopped and not self.ignores_stops

    def infer(self, request: Request) -> Outputs:
        """Return the response of a KServe inference, which decoupled models do not allow."""
        if self.is_decoupled:
            message = "ModelInfer RPC doesn't support models with decoupled transaction policy"
            raise ServerError(message)
        return self.respond_once(request)

    def respond_once(self, request: Request) -> Outputs:
        """Return the response of a call that allows only one."""
        responses = list(self.respond(replace(request, allows_stream=False)))
        if len(responses) != 1:
            raise ServerError(
                "generate expects model to produce exactly 1 response, use generate stream for "
                "model types that generate varying number of responses"
            )
        return responses[0]

    def note_call(self, name: str, headers: Iterable[tuple[str, str]]) -> None:
        """Record a call by its path or method."""
        self.calls.append((name, {key.lower(): value for key, value in headers}))

    def check_loaded(self, model: str) -> None:
        """Raise Triton's `ServerError` if a model is not loaded."""
        if model in self.unloaded:
            raise ServerError(f"Request for unknown model: '{model}' is not found", status=404)

    def describe_server(self) -> dict[str, Any]:
        """Return the server metadata."""
        return {"name": "triton", "version": VERSION, "extensions": ["model_repository"]}

    def describe_model(self, model: str) -> dict[str, Any]:
        """Return the model metadata."""
        self.check_loaded(model)
        return {"name": model, "versions": list(self.versions), "platform": "python"}

    def configure_model(self, model: str) -> dict[str, Any]:
        """Return the model configuration."""
        self.check_loaded(model)
        part = next((part for part in PARTS if model.endswith(part)), "tensorrt_llm_bls")
        inputs = self.inputs_of.get(model) or self.input_names or list_inputs(part)
        parameters = self.parameters_of.get(model, self.parameters)
        return {
            "name": model,
            "max_batch_size": 8,
            "input": [
                {"name": name, "optional": True, "data_type": self.types.get(name, "TYPE_INVALID")}
                for name in inputs
            ],
            "parameters": {name: {"string_value": value} for name, value in parameters.items()},
            "model_transaction_policy": {"decoupled": self.is_decoupled},
        }

    def list_models(self) -> list[dict[str, str]]:
        """Return the index of the repository."""
        return [
            {"name": name, "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
            if name in self.unloaded
            else {"name": name, "version": "1", "state": "READY"}
            for name in self.models
        ]

    def next_metrics_page(self) -> bytes:
        """Return the page of this scrape."""
        pages = self.metrics_pages
        return (pages.pop(0) if len(pages) > 1 else pages[0]).encode()


def list_inputs(part: str) -> tuple[str, ...]:
    """Return the input names of a part of a text model, or of the text model."""
    return tuple(tensor.name for tensor in load_contracts()[part].inputs)
