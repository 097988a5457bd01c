"""A Triton of the tests' own: real sockets, an answer chosen by the prompt, a record of cancels.

Prompts: `go` streams three pieces; `forever` streams until cancelled; `refuse` fails at once;
`break` fails after a piece; `vanish` drops the connection after a piece; `silent` never answers;
`beams` gives two sequences in one response; `nothing` ends without a response; `echo:TEXT` answers
TEXT; `controls` answers with escape sequences. The model `nope` is unknown.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtllm_serve_cli.client.endpoint import Endpoint

UNKNOWN = "Request for unknown model: 'nope' is not found"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
_FORMATS = {"INT32": "<i", "INT64": "<q", "UINT64": "<Q", "FP32": "<f", "BOOL": "<?"}
_TYPES = {
    "text_output": "BYTES",
    "cum_log_probs": "FP32",
    "output_log_probs": "FP32",
    "num_input_tokens": "INT32",
    "num_output_tokens": "INT32",
    "sequence_index": "INT32",
    "kv_cache_alloc_new_blocks": "INT32",
    "kv_cache_reused_blocks": "INT32",
    "kv_cache_alloc_total_blocks": "INT32",
    "arrival_time_ns": "INT64",
    "first_scheduled_time_ns": "INT64",
    "first_token_time_ns": "INT64",
    "last_token_time_ns": "INT64",
}
PERF = {
    "kv_cache_alloc_new_blocks": 3,
    "kv_cache_reused_blocks": 2,
    "kv_cache_alloc_total_blocks": 5,
    "arrival_time_ns": 10**18,
    "first_scheduled_time_ns": 10**18 + 1_200_000,
    "first_token_time_ns": 10**18 + 31_200_000,
    "last_token_time_ns": 10**18 + 231_200_000,
}


class Refused(Exception):
    """The model's own error."""


class Vanish(Exception):
    """The connection is to end as if the server died."""


class FakeTriton:
    """What the requests were, and whether they were cancelled."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled = threading.Event()
        self.closing = threading.Event()
        self.parameters: dict[str, str] = {}
        self.is_decoupled = True
        # How long a gRPC stream stays open after an error.
        self.ending_s = 0.0
        self.request_parameters: list[dict[str, str]] = []
        self.request_ids: list[str] = []
        self.metrics_page = b"# TYPE nv_cpu_utilization gauge\nnv_cpu_utilization 0.5\n"
        self.metrics_length: int | None = None
        self.endpoint = Endpoint()

    def answer(self, model: str, inputs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.requests.append(inputs)
        prompt = inputs["text_input"]
        if model == "nope":
            raise Refused(UNKNOWN)
        match prompt:
            case "refuse":
                raise Refused("max_tokens must be at least 1")
            case "forever" | "break" | "vanish":
                yield from self._endless(prompt)
            case "silent":
                self.closing.wait(600)
            case "beams":
                yield {
                    "text_output": ["one", "two"],
                    "cum_log_probs": [-1.0, -2.0],
                    "output_log_probs": [-0.25, -0.75, -1.5, -0.5],
                    "num_output_tokens": [4],
                }
            case "nothing":
                return
            case "controls":
                yield piece("a\x1b[2Jb\r\x9b\tc\n")
            case _ if prompt.startswith("echo:"):
                yield piece(prompt.removeprefix("echo:"))
            case _:
                for word in ("Machine", " ", "learning é"):
                    yield piece(word)

    def _endless(self, prompt: str) -> Iterator[dict[str, Any]]:
        while True:
            yield piece("on ")
            if prompt == "break":
                raise Refused("the engine worker died")
            if prompt == "vanish":
                raise Vanish
            time.sleep(0.01)


def piece(text: str) -> dict[str, Any]:
    """Upstream's outputs of one response, placeholders among them."""
    return {
        "text_output": [text],
        "sequence_index": [0],
        "cum_log_probs": [-0.5],
        "output_log_probs": [-0.5],
        "num_input_tokens": [4],
        "num_output_tokens": [1],
        **{name: [value] for name, value in PERF.items()},
    }


@contextmanager
def serve() -> Iterator[FakeTriton]:
    """A fake that answers gRPC, HTTP and metrics on free ports of the loopback interface."""
    fake = FakeTriton()
    pool = ThreadPoolExecutor(8)
    server = grpc.server(pool)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_service(fake, server), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    web = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    thread = threading.Thread(target=web.serve_forever, args=(0.01,))
    thread.start()
    address = f"127.0.0.1:{web.server_address[1]}"
    fake.endpoint = Endpoint(grpc=f"127.0.0.1:{port}", http=address, metrics=address)
    try:
        yield fake
    finally:
        fake.closing.set()
        web.shutdown()
        thread.join()
        web.server_close()
        server.stop(0).wait()
        pool.shutdown()


def _service(fake: FakeTriton, server: grpc.Server) -> Any:
    class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ModelConfig(self, request: Any, context: Any) -> Any:
            fake.headers.append(dict(context.invocation_metadata()))
            if request.name == "nope":
                context.abort(grpc.StatusCode.NOT_FOUND, UNKNOWN)
            response = service_pb2.ModelConfigResponse()
            response.config.model_transaction_policy.decoupled = fake.is_decoupled
            for name, value in fake.parameters.items():
                response.config.parameters[name].string_value = value
            return response

        def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:
            is_done = threading.Event()
            context.add_callback(lambda: None if is_done.is_set() else fake.cancelled.set())
            for request in requests:
                named = {name: value.string_param for name, value in request.parameters.items()}
                fake.request_parameters.append(named)
                fake.request_ids.append(request.id)
                try:
                    for outputs in fake.answer(request.model_name, _read(request)):
                        yield _message(outputs)
                        if not context.is_active():
                            fake.cancelled.set()
                            return
                except Refused as error:
                    yield service_pb2.ModelStreamInferResponse(error_message=str(error))
                    fake.closing.wait(fake.ending_s)
                except Vanish:
                    server.stop(0).wait(20)
            is_done.set()

    return Service()


def _read(request: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.name in ("lora_weights", "lora_config"):
            inputs[tensor.name] = (tensor.datatype, list(tensor.shape), raw)
            continue
        if tensor.datatype != "BYTES":
            assert list(tensor.shape) == [1, 1]
            (inputs[tensor.name],) = struct.unpack(_FORMATS[tensor.datatype], raw)
            continue
        words = []
        while raw:
            size = 4 + int.from_bytes(raw[:4], "little")
            words.append(raw[4:size].decode())
            raw = raw[size:]
        assert list(tensor.shape) == [1, len(words)]
        inputs[tensor.name] = words if tensor.name.endswith("_words") else words[0]
    return inputs


def _message(outputs: dict[str, Any]) -> Any:
    message = service_pb2.ModelStreamInferResponse()
    for name, values in outputs.items():
        kind = _TYPES[name]
        message.infer_response.outputs.add(name=name, datatype=kind, shape=[1, len(values)])
        if kind == "BYTES":
            raw = b"".join(struct.pack("<I", len(v.encode())) + v.encode() for v in values)
        else:
            raw = b"".join(struct.pack(_FORMATS[kind], v) for v in values)
        message.infer_response.raw_output_contents.append(raw)
    return message


def _handler(fake: FakeTriton) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            fake.headers.append({name.lower(): value for name, value in self.headers.items()})
            if self.path == "/metrics":
                self._send(200, fake.metrics_page, fake.metrics_length)
            elif self.path == "/v2/models/nope/config":
                self._send(404, json.dumps({"error": UNKNOWN}).encode())
            elif self.path.endswith("/config"):
                values = {name: {"string_value": v} for name, v in fake.parameters.items()}
                policy = {"decoupled": fake.is_decoupled}
                config = {"parameters": values, "model_transaction_policy": policy}
                self._send(200, json.dumps(config).encode())
            else:
                self._send(404, b"not here")

        def do_POST(self) -> None:
            model, verb = self.path.split("/")[3:5]
            assert verb == "generate_stream"
            inputs = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.request_parameters.append(inputs.pop("parameters", {}))
            fake.request_ids.append(inputs.pop("id", ""))
            has_begun = False
            try:
                for outputs in fake.answer(model, inputs):
                    if not has_begun:
                        self._begin(200)
                    has_begun = True
                    self._event({k: v[0] if len(v) == 1 else v for k, v in outputs.items()})
                if not has_begun:
                    self._begin(200)
            except Refused as error:
                if model == "nope":
                    self._send(404, json.dumps({"error": str(error)}).encode())
                    return
                if not has_begun:
                    self._begin(400)
                self._event({"error": str(error)})
            except Vanish:
                self.close_connection = True
                return
            except OSError:
                fake.cancelled.set()
                self.close_connection = True
                return
            with suppress(OSError):
                self.wfile.write(b"0\r\n\r\n")

        def _begin(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

        def _event(self, event: dict[str, Any]) -> None:
            data = b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def _send(self, status: int, body: bytes, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = length is not None

    return Handler
