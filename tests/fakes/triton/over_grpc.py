"""The gRPC interface of the fake Triton: Triton's KServe protocol."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.fakes.triton.answers import (
    DATATYPES,
    LISTS,
    ConnectionLost,
    ModelError,
    Outputs,
    Request,
    ServerError,
)

if TYPE_CHECKING:
    from tests.fakes.triton.server import FakeTriton

# Data type -> format character of `struct`.
_CODES = {"INT32": "i", "INT64": "q", "UINT64": "Q", "FP32": "f", "BOOL": "?"}
_RAW = ("lora_weights", "lora_config")


@contextmanager
def serve_grpc(fake: FakeTriton, port: int) -> Iterator[str]:
    """Serve `fake` until the block ends, which aborts its calls; yield the address."""
    with ThreadPoolExecutor(64) as pool:
        server = grpc.server(pool)
        service = _Service(fake, server)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
        address = f"127.0.0.1:{_bind(server, f'127.0.0.1:{port}', fake.certificate)}"
        server.start()
        try:
            yield address
        finally:
            stopped = server.stop(grace=None)
            fake.release()
            stopped.wait()


def _bind(server: grpc.Server, address: str, certificate: tuple[Path, Path] | None) -> int:
    if certificate is None:
        return int(server.add_insecure_port(address))
    chain, key = (path.read_bytes() for path in certificate)
    return int(server.add_secure_port(address, grpc.ssl_server_credentials([(key, chain)])))


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, fake: FakeTriton, server: grpc.Server) -> None:
        self._fake = fake
        self._server = server

    def ServerLive(self, request: Any, context: Any) -> Any:
        self._fake.calls.append(("ServerLive", {}))
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name not in self._fake.unloaded)

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        with self._call("ServerMetadata", context):
            return service_pb2.ServerMetadataResponse(**self._fake.describe_server())

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        with self._call("ModelMetadata", context):
            return service_pb2.ModelMetadataResponse(**self._fake.describe_model(request.name))

    def ModelConfig(self, request: Any, context: Any) -> Any:
        with self._call("ModelConfig", context):
            config = {"config": self._fake.configure_model(request.name)}
            return ParseDict(config, service_pb2.ModelConfigResponse())

    def RepositoryIndex(self, request: Any, context: Any) -> Any:
        with self._call("RepositoryIndex", context):
            return ParseDict(
                {"models": self._fake.list_models()}, service_pb2.RepositoryIndexResponse()
            )

    def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        with self._call("RepositoryModelLoad", context):
            self._fake.unloaded.discard(request.model_name)
            return service_pb2.RepositoryModelLoadResponse()

    def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        with self._call("RepositoryModelUnload", context):
            self._fake.unloaded.add(request.model_name)
            return service_pb2.RepositoryModelUnloadResponse()

    def ModelInfer(self, request: Any, context: Any) -> Any:
        with self._call("ModelInfer", context):
            return encode_response(self._fake.infer(_read(request, context)), request)

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        self._fake.note_call("ModelStreamInfer", context.invocation_metadata())
        has_ended = threading.Event()
        context.add_callback(lambda: None if has_ended.is_set() else self._fake.cancelled.set())
        for request in requests:
            try:
                for outputs in self._fake.respond(_read(request, context)):
                    yield encode_stream_response(outputs, request)
                    if not context.is_active():
                        return
            except (ModelError, ServerError) as error:
                yield service_pb2.ModelStreamInferResponse(error_message=str(error))
                self._fake.closing.wait(self._fake.ending_s)
                continue
            except ConnectionLost:
                self._server.stop(0).wait(20)
                return
            if request.parameters["triton_enable_empty_final_response"].bool_param:
                yield encode_stream_response({}, request, is_final=True)
        has_ended.set()

    @contextmanager
    def _call(self, method: str, context: Any) -> Iterator[None]:
        """Record a unary call, and convert errors of the fake to its status."""
        self._fake.note_call(method, context.invocation_metadata())
        try:
            yield
        except ServerError as error:
            is_missing = error.status == 404
            code = grpc.StatusCode.NOT_FOUND if is_missing else grpc.StatusCode.INVALID_ARGUMENT
            context.abort(code, str(error))
        except ModelError as error:
            context.abort(grpc.StatusCode.INTERNAL, str(error))


def _read(message: Any, context: Any) -> Request:
    inputs = {
        tensor.name: _decode(tensor, content)
        for tensor, content in zip(message.inputs, message.raw_input_contents, strict=True)
    }
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in message.parameters.items()
    }
    return Request(message.model_name, inputs, message.id, parameters, context.peer())


def _decode(tensor: Any, content: bytes) -> Any:
    if tensor.name in _RAW:
        return (tensor.datatype, list(tensor.shape), content)
    values = list(_unpack(tensor.datatype, content))
    assert len(values) == math.prod(tensor.shape), f"{tensor.name} does not match its shape"
    return values if tensor.name in LISTS or len(values) > 1 else values[0]


def _unpack(datatype: str, content: bytes) -> Iterator[Any]:
    if datatype != "BYTES":
        code = _CODES[datatype]
        yield from struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content)
        return
    while content:
        end = 4 + int.from_bytes(content[:4], "little")
        yield content[4:end].decode()
        content = content[end:]


def encode_response(outputs: Outputs, request: Any) -> Any:
    """Return a `ModelInferResponse` to the `ModelInferRequest`."""
    response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
    for name, values in outputs.items():
        datatype = DATATYPES[name]
        shape = [1, 1, len(values)] if name == "output_ids" else [1, len(values)]
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        response.raw_output_contents.append(_pack(datatype, values))
    return response


def encode_stream_response(outputs: Outputs, request: Any, *, is_final: bool = False) -> Any:
    """Return a `ModelStreamInferResponse` to the `ModelInferRequest`."""
    response = encode_response(outputs, request)
    response.parameters["triton_final_response"].bool_param = is_final
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def _pack(datatype: str, values: list[Any]) -> bytes:
    if datatype != "BYTES":
        return struct.pack(f"<{len(values)}{_CODES[datatype]}", *values)
    encoded = [value.encode() for value in values]
    return b"".join(struct.pack("<I", len(each)) + each for each in encoded)
