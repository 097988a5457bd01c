"""Send token ids to the `tensorrt_llm` model or the embedding model of a Triton server over gRPC.

The gateway uses this backend if it does not find an engine worker's socket. Possible reasons:

- The engine runs in Triton's C++ backend, which does not use a worker.
- The gateway was not started by `tllm start`, so it cannot find the worker's socket.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.client.transport.error_mapping import is_from_triton
from trtllm_serve_cli.client.transport.over_grpc import GRPC_OPTIONS, read_credentials
from trtllm_serve_cli.client.transport.tensors import decode_raw
from trtllm_serve_cli.gateway.errors import invalid, unavailable
from trtllm_serve_cli.gateway.generation.adapter_task import (
    AdapterTask,
    Infer,
    Inputs,
    UnusableAdapter,
)
from trtllm_serve_cli.gateway.generation.backend import OnUpdate
from trtllm_serve_cli.gateway.generation.triton_request import (
    extend_message,
    plan_embedding,
    plan_message,
    plan_stop,
)
from trtllm_serve_cli.runtime.engine import FinishReason, SequenceUpdate
from trtllm_serve_cli.runtime.lora.adapter_request import LORA_TENSORS
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder
from trtllm_serve_cli.runtime.text.tokenizer import Tokenizer
from trtllm_serve_cli.runtime.triton.core_inputs import EXCLUDE_INPUT

_READY_PERIOD_S = 1.0
_READY_TIMEOUT_S = 5.0
# Maximum reconnect backoff. With gRPC's default, a restarted server might not receive requests for
# up to two minutes.
_MAX_RECONNECT_PAUSE_MS = 1000
# Seconds to wait for the response to a stop request, and then for the stopped request to end. After
# that, the gRPC call of the stopped request is cancelled.
_STOP_TIMEOUT_S = 30.0


@dataclass
class _Call:
    """A request in flight.

    `is_sent` is false until the request is sent to Triton. If `is_cancelled` is true, updates are
    discarded.
    """

    on_update: OnUpdate
    is_sent: bool = False
    is_cancelled: bool = False

    def update(self, update: SequenceUpdate) -> None:
        if not self.is_cancelled:
            self.on_update(update)


class TritonBackend:
    """A connection to the model `core` of a Triton server.

    The backend checks every `ready_period_s` seconds whether the model is ready. `stop_timeout_s`
    limits the wait for the response to a stop request, and then for the stopped request to end.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        core: ModelInfo,
        tokenizer: Tokenizer,
        ready_period_s: float = _READY_PERIOD_S,
        stop_timeout_s: float = _STOP_TIMEOUT_S,
    ) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._channel = _open_channel(endpoint)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._ids = itertools.count(1)
        # The random prefix makes request ids unique across all gateways that use the model.
        self._id_prefix = f"gateway-{uuid.uuid4().hex}-"
        self._calls: dict[int, tuple[_Call, asyncio.Task[None]]] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self._stop_timeout_s = stop_timeout_s
        # The states of the LoRA adapters on this server, keyed by the task id or the name that
        # selects the adapter.
        self._adapters: dict[str | int, AdapterTask] = {}
        self._is_ready = True
        self._ready_period_s = ready_period_s
        self._monitor = asyncio.create_task(self._watch())

    @property
    def is_open(self) -> bool:
        return self._is_ready

    @property
    def accepts_adapters(self) -> bool:
        return self._core.inputs.issuperset(LORA_TENSORS)

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        if not self._is_ready:
            raise unavailable(f"The model '{self._core.name}' is not ready. Retry the request.")
        trace_parent = fields.get("trace_parent")
        if self._core.embedding is not None:
            message = plan_embedding(self._core.name, fields)
            return self._submit(message, EmbeddingReader, trace_parent, on_update)
        message = plan_message(
            self._core,
            fields,
            pad_id=self._tokenizer.pad_id,
            vocab_size=self._core.vocab_size or self._tokenizer.vocab_size,
        )
        reader = partial(ResponseReader, self._core, fields)
        adapter = self._find_adapter(fields)
        return self._submit(message, reader, trace_parent, on_update, adapter)

    def _submit(
        self,
        message: Any,
        make_reader: Callable[[int], _Reader],
        trace_parent: str | None,
        on_update: OnUpdate,
        adapter: AdapterTask | None = None,
    ) -> int:
        request_id = next(self._ids)
        message.id = f"{self._id_prefix}{request_id}"
        metadata = (("traceparent", trace_parent),) if trace_parent else None
        reader = make_reader(request_id)
        call = _Call(on_update)
        infer = partial(self._infer, message, metadata, reader, call)
        task = asyncio.create_task(self._run(request_id, infer, reader, call, adapter))
        self._calls[request_id] = call, task
        task.add_done_callback(lambda _: self._calls.pop(request_id))
        return request_id

    def cancel(self, request_id: int) -> None:
        call, task = self._calls.get(request_id, (None, None))
        if call is None or task is None or call.is_cancelled:
            return
        call.is_cancelled = True
        if not call.is_sent or "stop" not in self._core.inputs:
            task.cancel()
            return
        stop = asyncio.create_task(self._stop(request_id, task))
        self._stops.add(stop)
        stop.add_done_callback(self._stops.discard)

    async def _stop(self, request_id: int, task: asyncio.Task[None]) -> None:
        """Send a stop request and wait for the stopped request to end.

        Cancel the stopped request's gRPC call only if the request does not end in time, because
        cancelling a call while the model is still sending responses can crash Triton. See
        docs/decisions/triton-2.51.md.
        """
        message = plan_stop(self._core, f"{self._id_prefix}{request_id}")
        responses = self._stub.ModelStreamInfer(iter([message]), timeout=self._stop_timeout_s)
        # Ignore errors: the stop request fails if the stopped request has already ended, and it
        # times out if the model hangs.
        with contextlib.suppress(grpc.RpcError):
            async for _ in responses:
                pass
        done, _ = await asyncio.wait([task], timeout=self._stop_timeout_s)
        if not done:
            task.cancel()

    def open_decoder(
        self, request_id: int, sequence_index: int, *, skips_special_tokens: bool
    ) -> StreamDecoder:
        return StreamDecoder(
            lambda ids: self._tokenizer.decode(ids, skip_special_tokens=skips_special_tokens)
        )

    async def close(self) -> None:
        tasks = [self._monitor, *self._stops, *(task for _, task in self._calls.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._channel.close()

    async def _watch(self) -> None:
        request = service_pb2.ModelReadyRequest(name=self._core.name)
        while True:
            try:
                reply = await self._stub.ModelReady(request, timeout=_READY_TIMEOUT_S)
                self._is_ready = bool(reply.ready)
            except grpc.RpcError:
                self._is_ready = False
            await asyncio.sleep(self._ready_period_s)

    def _find_adapter(self, fields: Mapping[str, Any]) -> AdapterTask | None:
        """Return the adapter of a request, or None if the gateway does not have to send weights.

        Raise `ApiError` (400) if the model has no inputs for the weights.
        """
        folder, task_id = fields.get("lora_file"), fields.get("lora_task_id")
        if folder is None:
            return None
        if not self.accepts_adapters:
            raise invalid(
                f"The Triton model '{self._core.name}' does not have the inputs for LoRA adapters "
                f"({', '.join(LORA_TENSORS)}). Send the request to the base model.",
                "model",
                "unsupported_parameter",
            )
        key = fields["lora_name"] if task_id is None else task_id
        if key not in self._adapters:
            self._adapters[key] = AdapterTask(Path(folder), self._core.lora_datatype, task_id)
        return self._adapters[key]

    async def _run(
        self,
        request_id: int,
        infer: Infer,
        reader: _Reader,
        call: _Call,
        adapter: AdapterTask | None,
    ) -> None:
        """Send a request and report its final updates."""
        try:
            error = await (infer({}, lambda: None) if adapter is None else adapter.run(infer))
            updates = reader.finish(error)
        except UnusableAdapter as raised:
            updates = [SequenceUpdate(request_id, error=str(raised), rejected=True)]
        except grpc.RpcError as raised:
            updates = [SequenceUpdate(request_id, error=self._explain(raised))]
        except (ValueError, LookupError, struct.error) as raised:
            failure = f"the server's response is invalid: {raised}"
            updates = [SequenceUpdate(request_id, error=failure)]
        for update in updates:
            call.update(update)

    async def _infer(
        self,
        message: Any,
        metadata: Any,
        reader: _Reader,
        call: _Call,
        inputs: Inputs,
        on_response: Callable[[], None],
    ) -> str | None:
        """Send a request with additional `inputs`. Return Triton's error message, or None.

        Raise `grpc.RpcError` if the call fails. Raise `ValueError`, `LookupError` or `struct.error`
        if a response is invalid.
        """
        if call.is_cancelled:
            raise asyncio.CancelledError
        call.is_sent = True
        messages = iter([extend_message(message, inputs)])
        responses = self._stub.ModelStreamInfer(messages, metadata=metadata)
        error = None
        try:
            async for response in responses:
                if response.error_message:
                    # Do not cancel the call after an error, because Triton 2.51 never releases a
                    # call that is cancelled after its last response but before it ends.
                    error = response.error_message
                elif error is None:
                    on_response()
                    for update in reader.read(response.infer_response):
                        call.update(update)
        finally:
            responses.cancel()
        return error

    def _explain(self, error: Any) -> str:
        """Return why a call failed.

        If the connection was lost, reject new requests until the server responds again. In this
        case, omit gRPC's details, because clients must not see the server's address.
        """
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE and not is_from_triton(details):
            self._is_ready = False
            return "the connection to the server was lost; retry the request"
        return f"{details or f'the gRPC status is {code.name}'}; retry the request"


def _open_channel(endpoint: Endpoint) -> Any:
    options = (*GRPC_OPTIONS, ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_PAUSE_MS))
    if endpoint.tls is None:
        return grpc.aio.insecure_channel(endpoint.grpc, options=options)
    name = endpoint.tls.server_name
    override = (("grpc.ssl_target_name_override", name),) if name else ()
    credentials = read_credentials(endpoint.grpc, endpoint.tls)
    return grpc.aio.secure_channel(endpoint.grpc, credentials, options=(*options, *override))


class _Reader(Protocol):
    """Converts the responses to a request into sequence updates."""

    def read(self, response: Any) -> list[SequenceUpdate]:
        """Return the updates in a response."""

    def finish(self, error: str | None) -> list[SequenceUpdate]:
        """Return the final updates: an error, or the finish reason of each sequence."""


class EmbeddingReader:
    """Converts the response of an embedding model into a sequence update."""

    def __init__(self, request_id: int) -> None:
        self._request_id = request_id
        self._embedding = ""

    def read(self, response: Any) -> list[SequenceUpdate]:
        """Store the embedding for `finish` and return no updates."""
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True):
            if output.name == "embedding":
                self._embedding = base64.b64encode(content).decode()
        return []

    def finish(self, error: str | None) -> list[SequenceUpdate]:
        """Return the final update: an error or the embedding."""
        if error is None and not self._embedding:
            error = "the server's response is invalid: it does not contain an embedding"
        if error is not None:
            return [SequenceUpdate(self._request_id, error=error, rejected="max_seq_len" in error)]
        update = SequenceUpdate(self._request_id, finish_reason="stop", embedding=self._embedding)
        return [update]


class ResponseReader:
    """Converts `tensorrt_llm` responses into sequence updates.

    `tensorrt_llm` does not report why a sequence finished. A sequence with fewer tokens than
    requested must have reached its end token or a stop word. An update that ends with a stop token
    is held back, because the update that ends a sequence must contain the stop token.
    """

    def __init__(self, core: ModelInfo, fields: Mapping[str, Any], request_id: int) -> None:
        self._request_id = request_id
        self._max_new_tokens = int(fields["max_new_tokens"])
        self._num_tokens = dict.fromkeys(range(int(fields["num_return_sequences"])), 0)
        has_prompt = (
            not core.is_decoupled and not core.excludes_input and EXCLUDE_INPUT not in core.inputs
        )
        self._prompt_len = len(fields["input_ids"]) if has_prompt else 0
        self._stop_words = frozenset(fields.get("stop_words", ()))
        # Maps sequence indexes to the updates that are held back.
        self._held: dict[int, SequenceUpdate] = {}

    def read(self, response: Any) -> list[SequenceUpdate]:
        """Return the updates in a response."""
        shapes = {each.name: tuple(each.shape) for each in response.outputs}
        values = {
            each.name: decode_raw(each.datatype, content)
            for each, content in zip(response.outputs, response.raw_output_contents, strict=True)
        }
        if not values:
            return []
        first = int(values.get("sequence_index", [0])[0])
        width = shapes["output_ids"][-1]
        updates = []
        for number, length in enumerate(values["sequence_length"]):
            start = number * width
            ids = values["output_ids"][start + self._prompt_len : start + length]
            # `output_log_probs` has no values for prompt tokens, so its rows may be shorter than
            # those of `output_ids`.
            start = number * shapes.get("output_log_probs", (0,))[-1]
            log_probs = values.get("output_log_probs", [])[start : start + len(ids)]
            index = first + number
            self._num_tokens[index] += len(ids)
            update = SequenceUpdate(self._request_id, index, tuple(ids), log_probs=tuple(log_probs))
            updates += self._hold(update) if ids else [update]
        return updates

    def _hold(self, update: SequenceUpdate) -> list[SequenceUpdate]:
        """Hold `update` back if it ends with a stop token. Return the updates not held back."""
        index = update.sequence_index
        updates = [self._held.pop(index)] if index in self._held else []
        if update.token_ids[-1:] not in self._stop_words:
            return [*updates, update]
        self._held[index] = update
        return updates

    def finish(self, error: str | None) -> list[SequenceUpdate]:
        """Return the final updates: an error, or the finish reason of each sequence."""
        if error is not None:
            is_rejected = not any(self._num_tokens.values())
            return [SequenceUpdate(self._request_id, error=error, rejected=is_rejected)]
        return [self._end(index, count) for index, count in self._num_tokens.items()]

    def _end(self, index: int, num_tokens: int) -> SequenceUpdate:
        if index in self._held:
            return replace(self._held[index], finish_reason="stop")
        reason: FinishReason = "length" if num_tokens >= self._max_new_tokens else "stop"
        return SequenceUpdate(self._request_id, index, finish_reason=reason)
