"""Send token ids to the `tensorrt_llm` model or the embedding model of a Triton server over gRPC.

The gateway uses this backend if it cannot connect to an engine worker directly. TensorRT-LLM
engines that run in Triton's C++ backend have no worker. A gateway that `tllm start` did not start
cannot find the sockets of the workers.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.llmapi import name_inflight_inputs
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.client.transport.error_mapping import is_from_triton
from trtllm_serve_cli.client.transport.over_grpc import GRPC_OPTIONS, read_credentials
from trtllm_serve_cli.client.transport.tensors import decode_raw
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.errors import ApiError, invalid, unavailable
from trtllm_serve_cli.gateway.generation.backend import OnUpdate
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder
from trtllm_serve_cli.runtime.text.tokenizer import Tokenizer
from trtllm_serve_cli.runtime.triton.core_inputs import EXCLUDE_INPUT
from trtllm_serve_cli.runtime.triton.tensors import BIAS
from trtllm_serve_cli.runtime.triton.word_lists import encode_words

_READY_PERIOD_S = 1.0
_READY_TIMEOUT_S = 5.0
# The maximum pause between attempts to reconnect. gRPC's default is two minutes, during which a
# restarted server would receive no requests.
_MAX_RECONNECT_PAUSE_MS = 1000
# Maps a field of `GenerationRequest` to the name and type of the `tensorrt_llm` input. `input_ids`,
# `logit_bias` and the word lists are not in this table because they are not scalars.
_SCALARS: Mapping[str, tuple[str, str]] = {
    "max_new_tokens": ("request_output_len", "INT32"),
    "end_id": ("end_id", "INT32"),
    "num_return_sequences": ("num_return_sequences", "INT32"),
    "temperature": ("temperature", "FP32"),
    "top_k": ("runtime_top_k", "INT32"),
    "top_p": ("runtime_top_p", "FP32"),
    "seed": ("seed", "UINT64"),
    "repetition_penalty": ("repetition_penalty", "FP32"),
    "presence_penalty": ("presence_penalty", "FP32"),
    "frequency_penalty": ("frequency_penalty", "FP32"),
    "min_tokens": ("min_tokens", "INT32"),
    "return_log_probs": ("return_log_probs", "BOOL"),
    "guide_type": ("guided_decoding_guide_type", "BYTES"),
    "guide": ("guided_decoding_guide", "BYTES"),
    "lora_task_id": ("lora_task_id", "UINT64"),
}
# Maps fields without a Triton input to their descriptions in the error message.
_WITHOUT_INPUT = {
    "min_p": "Requests with min_p",
    "num_top_log_probs": "Log probabilities of alternatives (top_logprobs, or logprobs above 0)",
    "return_prompt_log_probs": "Log probabilities of the prompt (echo with logprobs)",
    "lora_name": "Adapters",
}
_WORD_LISTS = {"stop_words": "stop_words_list", "bad_words": "bad_words_list"}
_FORMATS = {"INT32": "<i", "UINT64": "<Q", "FP32": "<f", "BOOL": "<?"}
# Maps fields to their default values. If a field has its default value, its input is omitted.
_WITHOUT_EFFECT = {"num_return_sequences": 1, "return_log_probs": False}


class TritonBackend:
    """A connection to the model `core` of a Triton server.

    The backend checks every `ready_period_s` seconds whether the model is ready.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        core: ModelInfo,
        tokenizer: Tokenizer,
        ready_period_s: float = _READY_PERIOD_S,
    ) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._channel = _open_channel(endpoint)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._is_ready = True
        self._ready_period_s = ready_period_s
        self._monitor = asyncio.create_task(self._watch())

    @property
    def is_open(self) -> bool:
        return self._is_ready

    @property
    def reads_server_files(self) -> bool:
        return False

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        if not self._is_ready:
            raise unavailable(f"The model {self._core.name} is not ready; retry the request.")
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
        return self._submit(message, reader, trace_parent, on_update)

    def _submit(
        self,
        message: Any,
        make_reader: Callable[[int], _Reader],
        trace_parent: str | None,
        on_update: OnUpdate,
    ) -> int:
        request_id = next(self._ids)
        metadata = (("traceparent", trace_parent),) if trace_parent else None
        reader = make_reader(request_id)
        call = asyncio.create_task(self._run(request_id, message, metadata, reader, on_update))
        self._calls[request_id] = call
        call.add_done_callback(lambda _: self._calls.pop(request_id, None))
        return request_id

    def cancel(self, request_id: int) -> None:
        if (call := self._calls.pop(request_id, None)) is not None:
            call.cancel()

    def open_decoder(
        self, request_id: int, sequence_index: int, *, skips_special_tokens: bool
    ) -> StreamDecoder:
        return StreamDecoder(
            lambda ids: self._tokenizer.decode(ids, skip_special_tokens=skips_special_tokens)
        )

    async def close(self) -> None:
        tasks = [self._monitor, *self._calls.values()]
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

    async def _run(
        self,
        request_id: int,
        message: Any,
        metadata: Any,
        reader: _Reader,
        on_update: OnUpdate,
    ) -> None:
        call = self._stub.ModelStreamInfer(iter([message]), metadata=metadata)
        error = failure = None
        try:
            async for response in call:
                if response.error_message:
                    # Do not cancel the call after an error, because Triton 2.51 never releases a
                    # call that is cancelled after its last response but before it ends.
                    error = response.error_message
                elif error is None:
                    for update in reader.read(response.infer_response):
                        on_update(update)
        except grpc.RpcError as raised:
            failure = self._explain(raised)
        except (ValueError, LookupError, struct.error) as raised:
            failure = f"the server's response is invalid: {raised}"
        finally:
            call.cancel()
        failed = [SequenceUpdate(request_id, error=failure)]
        for update in failed if failure else reader.finish(error):
            on_update(update)

    def _explain(self, error: Any) -> str:
        """Return why a call failed, without the server's address, which clients must not see.

        If the connection was lost, do not accept requests until the server responds again.
        """
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE and not is_from_triton(details):
            self._is_ready = False
            return "the connection to the server was lost; retry the request"
        return f"{details or code.name}; retry the request"


def _open_channel(endpoint: Endpoint) -> Any:
    options = (*GRPC_OPTIONS, ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_PAUSE_MS))
    if endpoint.tls is None:
        return grpc.aio.insecure_channel(endpoint.grpc, options=options)
    name = endpoint.tls.server_name
    override = (("grpc.ssl_target_name_override", name),) if name else ()
    credentials = read_credentials(endpoint.grpc, endpoint.tls)
    return grpc.aio.secure_channel(endpoint.grpc, credentials, options=(*options, *override))


def plan_message(
    core: ModelInfo, fields: Mapping[str, Any], *, pad_id: int, vocab_size: int
) -> Any:
    """Return the `ModelInferRequest` for the fields of a `GenerationRequest`.

    Raise `ApiError` (400) if the request requires an input that the model does not have, or sets a
    field that only engine workers support.
    """
    values: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    ids = np.array([fields["input_ids"]], dtype=np.int32)
    values["input_ids"] = ("INT32", ids.shape, ids.tobytes())
    values["input_lengths"] = _scalar("INT32", ids.shape[1])
    values["pad_id"] = _scalar("INT32", pad_id)
    values["streaming"] = _scalar("BOOL", core.is_decoupled)
    values[EXCLUDE_INPUT] = _scalar("BOOL", True)
    for field, (name, datatype) in _SCALARS.items():
        value = fields.get(field)
        if value is not None and value != _WITHOUT_EFFECT.get(field, ...):
            values[name] = _scalar(datatype, value)
    for field, name in _WORD_LISTS.items():
        if words := fields.get(field):
            array = encode_words([[list(word) for word in words]])
            values[name] = ("INT32", array.shape, array.tobytes())
    if bias := fields.get("logit_bias"):
        array = np.zeros((1, vocab_size), dtype=np.float32)
        for token, value in bias:
            array[0, token] = value
        values[BIAS] = ("FP32", array.shape, array.tobytes())
    for field, what in _WITHOUT_INPUT.items():
        if fields.get(field):
            raise invalid(
                f"{what} require an engine worker on the gateway's machine. Omit them, or ask the "
                "operator to run the gateway on the server's machine.",
                "model" if field == "lora_name" else None,
                "unsupported_parameter",
            )
    try:
        names = name_inflight_inputs(
            core.name, _required(values, core), core.inputs, core.tensorrt_llm_version
        )
    except BadInput as error:
        raise _unsupported(error) from error
    message = service_pb2.ModelInferRequest(model_name=core.name)
    for name, served_name in names.items():
        datatype, shape, content = values[name]
        message.inputs.add(name=served_name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(content)
    return message


def _required(values: Mapping[str, Any], core: ModelInfo) -> list[str]:
    """Return the names of the inputs to send.

    These are all inputs in `values`, except for optional inputs that the model does not have.
    """
    dispensable = ("streaming", "pad_id", EXCLUDE_INPUT)
    return [name for name in values if name in core.inputs or name not in dispensable]


def _unsupported(error: BadInput) -> ApiError:
    return invalid(f"{error.what} {error.why}; {error.next_step}.", code="unsupported_parameter")


def _scalar(datatype: str, value: Any) -> tuple[str, tuple[int, ...], bytes]:
    if datatype == "BYTES":
        data = str(value).encode()
        return datatype, (1, 1), struct.pack("<I", len(data)) + data
    return datatype, (1, 1), struct.pack(_FORMATS[datatype], value)


def plan_embedding(model: str, fields: Mapping[str, Any]) -> Any:
    """Return the `ModelInferRequest` that computes the embedding of a prompt."""
    ids = np.array([fields["input_ids"]], dtype=np.int32)
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="input_ids", datatype="INT32", shape=ids.shape)
    message.raw_input_contents.append(ids.tobytes())
    return message


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
        """Store the embedding for `finish`, and return no updates."""
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
    requested must have reached its end token or a stop word.
    """

    def __init__(self, core: ModelInfo, fields: Mapping[str, Any], request_id: int) -> None:
        self._request_id = request_id
        self._max_new_tokens = int(fields["max_new_tokens"])
        self._num_tokens = dict.fromkeys(range(int(fields["num_return_sequences"])), 0)
        has_prompt = (
            not core.is_decoupled and not core.excludes_input and EXCLUDE_INPUT not in core.inputs
        )
        self._prompt_len = len(fields["input_ids"]) if has_prompt else 0

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
            updates.append(
                SequenceUpdate(self._request_id, index, tuple(ids), log_probs=tuple(log_probs))
            )
        return updates

    def finish(self, error: str | None) -> list[SequenceUpdate]:
        """Return the final updates: an error, or the finish reason of each sequence."""
        if error is not None:
            is_rejected = not any(self._num_tokens.values())
            return [SequenceUpdate(self._request_id, error=error, rejected=is_rejected)]
        return [
            SequenceUpdate(
                self._request_id,
                index,
                finish_reason="length" if count >= self._max_new_tokens else "stop",
            )
            for index, count in self._num_tokens.items()
        ]
