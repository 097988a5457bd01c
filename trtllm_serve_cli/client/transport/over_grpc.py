"""Send requests to text models over gRPC with `ModelStreamInfer`.

Decoupled models require `ModelStreamInfer`. This module uses the gRPC stub of `tritonclient`, which
returns an iterator that can be cancelled. The package's `InferenceServerClient` instead passes
responses to a callback in another thread.
"""

from __future__ import annotations

import dataclasses
import struct
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtllm_serve_cli.client.endpoint import Endpoint, Tls
from trtllm_serve_cli.client.generate import LOGITS, GenerateRequest, Piece
from trtllm_serve_cli.client.llmapi import returns_prompt, shape_input
from trtllm_serve_cli.client.model_info import ModelInfo, find_latest, parse_model_config
from trtllm_serve_cli.client.transport import error_mapping
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.client.transport.served_inputs import (
    plan_served_inputs,
    plan_served_parameters,
)
from trtllm_serve_cli.client.transport.tensors import (
    Datatype,
    decode_array,
    decode_raw,
    encode_raw,
    encode_rows,
    parse_pieces,
    split_rows,
)
from trtllm_serve_cli.errors import BadInput, TllmError

# Maximum time to wait for the end of a failed call before the call is cancelled.
_DRAIN_TIMEOUT_S = 2.0
GRPC_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)


def stream_grpc(
    endpoint: Endpoint,
    info: ModelInfo,
    request: GenerateRequest,
    timeout_s: float | None,
    cancellation: Cancellation,
) -> Generator[Piece, None, None]:
    """Yield the pieces of a response as they arrive.

    Closing the generator cancels the request on the server.
    """
    message = _plan_message(info, request, (request.text_input,))
    with closing(stream_responses(endpoint, message, timeout_s, cancellation)) as responses:
        for at_s, response in responses:
            outputs = _read_outputs(endpoint.grpc, response, request)
            yield from _parse(endpoint.grpc, info, request, outputs, at_s)


def stream_rows(
    endpoint: Endpoint,
    info: ModelInfo,
    request: GenerateRequest,
    prompts: Sequence[str],
    timeout_s: float | None,
    cancellation: Cancellation,
) -> Generator[Piece, None, None]:
    """Yield the pieces of the responses to several prompts as they arrive.

    The options of `request` apply to all prompts. Closing the generator cancels the request.
    """
    message = _plan_message(info, request, prompts)
    with closing(stream_responses(endpoint, message, timeout_s, cancellation)) as responses:
        for at_s, response in responses:
            outputs = _read_outputs(endpoint.grpc, response, request)
            try:
                rows = split_rows(outputs, len(prompts))
            except ValueError as error:
                raise error_mapping.invalid_response(endpoint.grpc, str(error)) from error
            for index, row in rows:
                one = dataclasses.replace(request, text_input=prompts[index])
                for piece in _parse(endpoint.grpc, info, one, row, at_s):
                    yield dataclasses.replace(piece, batch_index=index)


def stream_responses(
    endpoint: Endpoint, message: Any, timeout_s: float | None, cancellation: Cancellation
) -> Generator[tuple[float, Any], None, None]:
    """Yield the arrival time and the `ModelInferResponse` of each response to `message`.

    `message` is a `ModelInferRequest`. Closing the generator cancels the request on the server.
    """
    address = endpoint.grpc
    model = message.model_name
    has_begun = False
    with connect(address, endpoint.tls) as stub:
        call = stub.ModelStreamInfer(iter([message]), timeout=timeout_s)
        try:
            with cancellation.calling(call.cancel):
                for response in call:
                    at_s = time.monotonic()
                    has_begun = True
                    if response.error_message:
                        _drain_call(call)
                        raise error_mapping.refused(model, response.error_message)
                    yield at_s, response.infer_response
        except grpc.RpcError as error:
            raise _translate_rpc_error(
                error, address, model, timeout_s, has_begun=has_begun
            ) from error
        finally:
            call.cancel()


def _drain_call(call: Any) -> None:
    """Wait until a failed call has ended, or cancel the call after `_DRAIN_TIMEOUT_S`.

    A failed call normally ends immediately. If a call is cancelled between its last response and
    its end, Triton 2.51 never releases the call. Triton then cannot unload the model and exits only
    after the full exit timeout.
    """
    limit = threading.Timer(_DRAIN_TIMEOUT_S, call.cancel)
    limit.start()
    try:
        with suppress(grpc.RpcError):
            for _ in call:
                pass
    finally:
        limit.cancel()


@contextmanager
def connect(address: str, tls: Tls | None = None) -> Iterator[Any]:
    """Yield a stub for Triton's gRPC service.

    Calls that are still open at the end of the `with` block are cancelled.
    """
    with _open_channel(address, tls) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def _open_channel(address: str, tls: Tls | None) -> Any:
    if tls is None:
        return grpc.insecure_channel(address, options=GRPC_OPTIONS)
    credentials = read_credentials(address, tls)
    target_name = ("grpc.ssl_target_name_override", tls.server_name)
    options = (*GRPC_OPTIONS, target_name) if tls.server_name else GRPC_OPTIONS
    return grpc.secure_channel(address, credentials, options=options)


def read_credentials(address: str, tls: Tls) -> Any:
    """Return the gRPC credentials for `tls`. Raise `BadInput` if a file cannot be read."""
    paths = (tls.root_certificates, tls.private_key, tls.certificate_chain)
    try:
        return grpc.ssl_channel_credentials(*(_read_pem(path) for path in paths))
    except OSError as error:
        raise BadInput(
            f"{error.filename} cannot be read.",
            why=f"{error.strerror}; the TLS connection to {address} requires the file",
            next_step="check the file's path and permissions",
        ) from error


def _read_pem(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def fetch_info(endpoint: Endpoint, model: str, timeout_s: float) -> ModelInfo:
    """Return the settings in the model's configuration."""
    with _connect_for_calls(endpoint, model, timeout_s) as stub:
        reply = stub.ModelConfig(service_pb2.ModelConfigRequest(name=model), timeout=timeout_s)
    config = MessageToDict(reply.config, preserving_proto_field_name=True)
    return parse_model_config(model, config)


def fetch_versions(endpoint: Endpoint, model: str, timeout_s: float) -> tuple[str, str]:
    """Return the server's version and the latest served version of the model."""
    with _connect_for_calls(endpoint, model, timeout_s) as stub:
        server = stub.ServerMetadata(service_pb2.ServerMetadataRequest(), timeout=timeout_s)
        request = service_pb2.ModelMetadataRequest(name=model)
        metadata = stub.ModelMetadata(request, timeout=timeout_s)
    return server.version, find_latest(metadata.versions)


def infer(
    endpoint: Endpoint, model: str, inputs: Mapping[str, str | int], timeout_s: float | None
) -> dict[str, list[Any]]:
    """Send a request with one row and return the values of each output, keyed by name."""
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, value in inputs.items():
        datatype: Datatype = "BYTES" if isinstance(value, str) else "INT32"
        shape, content = encode_raw(datatype, value)
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(content)
    with _connect_for_calls(endpoint, model, timeout_s, "increase --timeout") as stub:
        response = stub.ModelInfer(message, timeout=timeout_s)
    try:
        return {
            output.name: decode_raw(output.datatype, content)
            for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
        }
    except (struct.error, ValueError) as error:
        raise error_mapping.invalid_response(
            endpoint.grpc, f"an output tensor is invalid: {error}"
        ) from error


@contextmanager
def _connect_for_calls(
    endpoint: Endpoint,
    model: str,
    timeout_s: float | None,
    after_timeout: str = error_mapping.CHECK_SERVER,
) -> Iterator[Any]:
    with connect(endpoint.grpc, endpoint.tls) as stub:
        try:
            yield stub
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise error_mapping.timed_out(model, timeout_s, after_timeout) from error
            raise _translate_rpc_error(
                error, endpoint.grpc, model, timeout_s, has_begun=False
            ) from error


def _plan_message(info: ModelInfo, request: GenerateRequest, prompts: Sequence[str]) -> Any:
    """Return the message for a request with one row per prompt.

    The options of `request` apply to all rows.
    """
    model = info.name
    message = service_pb2.ModelInferRequest(model_name=model, id=request.request_id)
    for name, each in plan_served_inputs(info, request).items():
        values = prompts if name == "text_input" else [each.value] * len(prompts)
        shape, content = encode_rows(each.datatype, values)
        shape = shape_input(model, info.inputs, shape)
        message.inputs.add(name=name, datatype=each.datatype, shape=shape)
        message.raw_input_contents.append(content)
    for name, value in plan_served_parameters(info, request).items():
        message.parameters[name].string_param = value
    return message


def _read_outputs(address: str, response: Any, request: GenerateRequest) -> dict[str, list[Any]]:
    """Return the values of each output as a flat list, keyed by output name.

    For requested logits, the list contains a single array.
    """
    arrays = {name for name in LOGITS if getattr(request, f"return_{name}")}
    try:
        return {
            output.name: [decode_array(output.datatype, output.shape[1:], content)]
            if output.name in arrays
            else decode_raw(output.datatype, content)
            for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
        }
    except (struct.error, ValueError) as error:
        raise error_mapping.invalid_response(
            address, f"an output tensor is invalid: {error}"
        ) from error


def _parse(
    address: str,
    info: ModelInfo,
    request: GenerateRequest,
    outputs: Mapping[str, Sequence[Any]],
    at_s: float,
) -> list[Piece]:
    """Return the pieces of a response. Raise `RequestFailed` if an output is invalid."""
    has_prompt = returns_prompt(info, request)
    try:
        return parse_pieces(request, outputs, at_s, returns_prompt=has_prompt)
    except ValueError as error:
        raise error_mapping.invalid_response(
            address, f"an output tensor is invalid: {error}"
        ) from error


def _translate_rpc_error(
    error: grpc.RpcError, address: str, model: str, timeout_s: float | None, *, has_begun: bool
) -> TllmError:
    """Return the error for a failed gRPC call.

    `has_begun` is true if a response arrived before the failure.
    """
    # Use `Any`, because gRPC has no type for an error that is both an `RpcError` and a `Call`.
    call: Any = error
    code, details = call.code(), call.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return error_mapping.timed_out(model, timeout_s)
    if code is grpc.StatusCode.UNAVAILABLE and not error_mapping.is_from_triton(details):
        lost = error_mapping.connection_lost if has_begun else error_mapping.no_server
        return lost(address, details)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return error_mapping.invalid_response(
            address, "the gRPC service at this address is not Triton's"
        )
    return error_mapping.refused(model, details or f"the gRPC status is {code.name}")
