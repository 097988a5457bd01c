"""The HTTP interface of the fake Triton: KServe, the generate extension, and metrics."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

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


@contextmanager
def serve_http(fake: FakeTriton, port: int) -> Iterator[str]:
    """Serve `fake` until the block ends; yield the address."""

    class Handler(_Handler):
        triton = fake

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    triton: FakeTriton

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, answer: Callable[[list[str]], None]) -> None:
        self.triton.note_call(self.path, self.headers.items())
        try:
            answer(self.path.strip("/").split("/"))
        except ServerError as error:
            self._send_json({"error": str(error)}, error.status)
        except ModelError as error:
            self._send_json({"error": str(error)}, 400)
        except ConnectionLost:
            self.close_connection = True
        except OSError:  # the client has disconnected
            self.triton.cancelled.set()
            self.close_connection = True

    def _get(self, path: list[str]) -> None:
        triton = self.triton
        match path:
            case ["metrics"]:
                self._send(200, triton.next_metrics_page(), triton.metrics_length)
            case ["v2"]:
                self._send_json(triton.describe_server())
            case ["v2", "health", "live" | "ready"]:
                self._send(200)
            case ["v2", "models", model]:
                self._send_json(triton.describe_model(model))
            case ["v2", "models", model, "config"]:
                self._send_json(triton.configure_model(model))
            case ["v2", "models", model, "ready"]:
                self._send(400 if model in triton.unloaded else 200)
            case _:
                self._send(404, b"not found")

    def _post(self, path: list[str]) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        match path:
            case ["v2", "models", model, "generate_stream"]:
                self._stream(self._read_generate(model, json.loads(body)))
            case ["v2", "models", model, "generate"]:
                outputs = self.triton.respond_once(self._read_generate(model, json.loads(body)))
                self._send_json({"model_name": model, "model_version": "1", **_flatten(outputs)})
            case ["v2", "models", model, "infer"]:
                request = self._read_infer(model, json.loads(body))
                self._send_json(_encode_infer(request, self.triton.infer(request)))
            case ["v2", "repository", *what]:
                self._manage(what)
            case _:
                self._send(404, b"not found")

    def _manage(self, what: list[str]) -> None:
        match what:
            case ["index"]:
                self._send_json(self.triton.list_models())
            case ["models", model, "load"]:
                self.triton.unloaded.discard(model)
                self._send(200)
            case ["models", model, "unload"]:
                self.triton.unloaded.add(model)
                self._send(200)

    def _read_generate(self, model: str, body: dict[str, Any]) -> Request:
        request_id, parameters = body.pop("id", ""), body.pop("parameters", {})
        return Request(model, body, request_id, parameters, self._peer())

    def _read_infer(self, model: str, body: dict[str, Any]) -> Request:
        values = {each["name"]: _ravel(each["data"]) for each in body["inputs"]}
        inputs = {
            name: data if name in LISTS or len(data) > 1 else data[0]
            for name, data in values.items()
        }
        return Request(model, inputs, body.get("id", ""), body.get("parameters", {}), self._peer())

    def _peer(self) -> str:
        return "{}:{}".format(*self.client_address)

    def _stream(self, request: Request) -> None:
        """Send each response as an event. A failure before the first one also sets the status."""
        status = 200
        try:
            for outputs in self.triton.respond(request):
                self._begin_events(status)
                status = 0
                self._send_event(_flatten(outputs))
            self._begin_events(status)
        except ModelError as error:
            self._begin_events(status and 400)
            self._send_event({"error": str(error)})
        self.wfile.write(b"0\r\n\r\n")

    def _begin_events(self, status: int) -> None:
        if status:
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

    def _send_event(self, event: dict[str, Any]) -> None:
        data = b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _send_json(self, value: object, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode())

    def _send(self, status: int, body: bytes = b"", length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
        # A body that is shorter than its Content-Length ends with the connection.
        self.close_connection = self.close_connection or length is not None


def _flatten(outputs: Outputs) -> dict[str, Any]:
    return {name: values[0] if len(values) == 1 else values for name, values in outputs.items()}


def _encode_infer(request: Request, outputs: Outputs) -> dict[str, Any]:
    tensors = [
        {"name": name, "datatype": DATATYPES[name], "shape": [1, len(values)], "data": values}
        for name, values in outputs.items()
    ]
    return {
        "model_name": request.model,
        "model_version": "1",
        "id": request.id,
        "outputs": tensors,
    }


def _ravel(data: list[Any]) -> list[Any]:
    """Return the values of a tensor, whose rows JSON may nest."""
    while data and isinstance(data[0], list):
        data = [value for row in data for value in row]
    return data
