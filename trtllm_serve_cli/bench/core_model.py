"""The server's `tensorrt_llm` model: what it says about itself, and how requests travel to it.

Each request has a stream of its own, opened as a unary-to-stream call: measured on two cores
against a Python model in Triton that answers at once (64 in flight), that gives 4300 requests/s,
where one stream shared by all requests gives 3400 and four shared ones 3800. It also keeps errors
and cancellations apart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtllm_serve_cli.bench.records import RequestError
from trtllm_serve_cli.client import faults
from trtllm_serve_cli.client.over_grpc import translate_rpc_error
from trtllm_serve_cli.errors import UnknownModel

CORE_MODEL = "tensorrt_llm"
_TIMEOUT_S = 10.0
_SERVICE = "/inference.GRPCInferenceService"
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # a retried request would be measured as a slow one
    ("grpc.enable_http_proxy", 0),  # a load through a proxy measures the proxy
)

Send = Callable[[bytes], AsyncIterator[bytes]]


@dataclass(frozen=True, slots=True)
class CoreModel:
    """What the server says of itself and of the model; `None` is what it does not say."""

    address: str
    name: str
    version: str
    server_version: str
    is_decoupled: bool
    max_batch_size: int
    vocab_size: int | None


class SendFailed(Exception):
    """A request ended with a gRPC status other than OK."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


def open_channel(address: str) -> Any:
    """A gRPC channel to `host:port`; use it as an async context manager."""
    return aio.insecure_channel(address, options=_CHANNEL_OPTIONS)


async def fetch_core_model(channel: Any, address: str, name: str = CORE_MODEL) -> CoreModel:
    """Ask the server about the model. Raises `NoServer`, `UnknownModel` or `RequestFailed`."""
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    wait = {"timeout": _TIMEOUT_S}
    try:
        server = await stub.ServerMetadata(service_pb2.ServerMetadataRequest(), **wait)
        metadata = await stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=name), **wait)
        reply = await stub.ModelConfig(service_pb2.ModelConfigRequest(name=name), **wait)
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise faults.no_server(address, f"no answer within {_TIMEOUT_S:g} s") from error
        raise translate_rpc_error(error, address, name, _TIMEOUT_S, has_begun=False) from error
    config = reply.config
    _check_inputs({tensor.name for tensor in config.input}, name, address)
    vocab_size = config.parameters["vocab_size"].string_value
    return CoreModel(
        address=address,
        name=name,
        version=max(metadata.versions, default=""),
        server_version=server.version,
        is_decoupled=config.model_transaction_policy.decoupled,
        max_batch_size=config.max_batch_size,
        vocab_size=int(vocab_size) if vocab_size.isdecimal() and int(vocab_size) else None,
    )


def open_sender(channel: Any, model: CoreModel) -> Send:
    """A function that sends an encoded request and yields its responses as they arrive, undecoded.

    It raises `SendFailed`. A decoupled model answers on a stream; Triton refuses unary calls to it.
    """
    call = (
        channel.unary_stream(f"{_SERVICE}/ModelStreamInfer")
        if model.is_decoupled
        else channel.unary_unary(f"{_SERVICE}/ModelInfer")
    )

    async def send_to_stream(payload: bytes) -> AsyncIterator[bytes]:
        stream = call(payload)
        try:
            while (raw := await stream.read()) is not aio.EOF:
                yield raw
        except aio.AioRpcError as error:
            raise SendFailed(_to_request_error(error)) from error
        finally:
            stream.cancel()

    async def send_alone(payload: bytes) -> AsyncIterator[bytes]:
        try:
            yield await call(payload)
        except aio.AioRpcError as error:
            raise SendFailed(_to_request_error(error)) from error

    return send_to_stream if model.is_decoupled else send_alone


def _to_request_error(error: Any) -> RequestError:
    return RequestError(error.code().name.lower(), error.details() or "")


def _check_inputs(inputs: set[str], name: str, address: str) -> None:
    missing = {"input_ids", "input_lengths", "request_output_len"} - inputs
    if missing:
        raise UnknownModel(
            f"The model {name} at {address} is not an LLM that takes token ids.",
            why=f"it has no input {', '.join(sorted(missing))}",
            next_step="tllm status",
        )
