"""A gRPC server that speaks Triton's protocol and whose `tensorrt_llm` answers with zeros.

It checks what Triton would refuse: an unknown model, a unary call to a decoupled model, a tensor
whose bytes do not fit its shape.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

_DTYPES = {"INT32": np.int32, "BOOL": np.bool_}


@dataclass
class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """`received` holds each request's inputs by name; `hold` blocks answers while it is cleared.

    It clears itself at request number `sticks_at`, counted from 1.
    """

    decoupled: bool = True
    vocab_size: str | None = "500"
    ttft_s: float = 0.0
    itl_s: float = 0.0
    fails_every: int = 0
    sticks_at: int = 0
    inputs: tuple[str, ...] = ("input_ids", "input_lengths", "request_output_len", "streaming")
    received: list[dict[str, Any]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)

    def start(self) -> str:
        """The address at which it now answers."""
        self.hold.set()
        self.server = grpc.server(ThreadPoolExecutor(64))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        return f"127.0.0.1:{port}"

    def stop(self) -> None:
        stopped = self.server.stop(grace=None)
        self.hold.set()
        stopped.wait()

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0")

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        self._check_name(request.name, context)
        return service_pb2.ModelMetadataResponse(name=request.name, versions=["1"])

    def ModelConfig(self, request: Any, context: Any) -> Any:
        self._check_name(request.name, context)
        config = model_config_pb2.ModelConfig(name=request.name, max_batch_size=8)
        config.model_transaction_policy.decoupled = self.decoupled
        for name in self.inputs:
            config.input.add(name=name)
        if self.vocab_size is not None:
            config.parameters["vocab_size"].string_value = self.vocab_size
        return service_pb2.ModelConfigResponse(config=config)

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self._check_name(request.model_name, context)
        if self.decoupled:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "decoupled models need a stream")
        inputs = self._take(request)
        if self._must_fail():
            context.abort(grpc.StatusCode.INTERNAL, "out of cheese")
        self._wait(self.ttft_s)
        return _reply(request, int(inputs["request_output_len"][0, 0]))

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            inputs = self._take(request)
            if self._must_fail():
                yield service_pb2.ModelStreamInferResponse(
                    error_message=f"[request id: {request.id}] out of cheese"
                )
                continue
            num_tokens = int(inputs["request_output_len"][0, 0])
            self._wait(self.ttft_s)
            if "streaming" not in inputs:
                yield _stream_reply(request, num_tokens)
            for index in range(num_tokens if "streaming" in inputs else 0):
                self._wait(self.itl_s if index else 0)
                yield _stream_reply(request, 1)
            yield _stream_reply(request, 0, is_final=True)

    def _check_name(self, name: str, context: Any) -> None:
        if name != "tensorrt_llm":
            context.abort(
                grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found"
            )

    def _take(self, request: Any) -> dict[str, Any]:
        inputs = {}
        for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True):
            value = np.frombuffer(content, _DTYPES[tensor.datatype])
            assert value.size == math.prod(tensor.shape)
            inputs[tensor.name] = value.reshape(tensor.shape)
        self.received.append(inputs)
        if len(self.received) == self.sticks_at:
            self.hold.clear()
        return inputs

    def _must_fail(self) -> bool:
        return bool(self.fails_every) and len(self.received) % self.fails_every == 0

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        self.hold.wait()


def _reply(request: Any, num_tokens: int) -> Any:
    reply = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
    for name, value in (
        ("output_ids", np.zeros((1, 1, num_tokens), np.int32)),
        ("sequence_length", np.array([[num_tokens]], np.int32)),
    ):
        reply.outputs.add(name=name, datatype="INT32", shape=value.shape)
        reply.raw_output_contents.append(value.tobytes())
    return reply


def _stream_reply(request: Any, num_tokens: int, *, is_final: bool = False) -> Any:
    reply = (
        _reply(request, num_tokens) if num_tokens else service_pb2.ModelInferResponse(id=request.id)
    )
    reply.parameters["triton_final_response"].bool_param = is_final
    return service_pb2.ModelStreamInferResponse(infer_response=reply)
