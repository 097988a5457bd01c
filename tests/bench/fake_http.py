"""An HTTP server that speaks Triton's protocol; its models answer at once, a token an event."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_INPUTS = {
    "tensorrt_llm": ("input_ids", "input_lengths", "request_output_len", "streaming"),
    "ensemble": ("text_input", "max_tokens", "stream", "return_num_output_tokens"),
}


@dataclass
class FakeHttp:
    """`bodies` holds what was asked; the models count tokens unless told not to."""

    counts_tokens: bool = True
    fails: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: set[tuple[str, int]] = field(default_factory=set)

    @property
    def num_connections_for_requests(self) -> int:
        return len(self.connections)

    def start(self) -> str:
        """The address at which it now answers."""
        fake = self

        class Handler(_Handler):
            server_model = fake

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        return f"127.0.0.1:{self.server.server_address[1]}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_model: FakeHttp

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.removeprefix("/v2/models/").partition("/")[0]
        if self.path == "/v2":
            self._reply(200, {"name": "triton", "version": "2.51.0"})
        elif name not in _INPUTS:
            self._reply(400, {"error": f"Request for unknown model: '{name}' is not found"})
        elif self.path.endswith("/config"):
            self._reply(
                200,
                {
                    "max_batch_size": 8,
                    "input": [{"name": each} for each in _INPUTS[name]],
                    "parameters": {"vocab_size": {"string_value": "500"}},
                    "model_transaction_policy": {"decoupled": True},
                },
            )
        else:
            self._reply(200, {"name": name, "versions": ["1"]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server_model.bodies.append(body)
        self.server_model.connections.add(self.client_address)
        if self.server_model.fails:
            self._reply(500, {"error": "out of cheese"})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        streams = body.get("stream") or body.get("streaming")
        num_tokens = body.get("max_tokens", body.get("request_output_len"))
        for _ in range(num_tokens if streams else 1):
            self._send_event(1 if streams else num_tokens, is_text="text_input" in body)
        self.wfile.write(b"0\r\n\r\n")

    def _send_event(self, num_tokens: int, *, is_text: bool) -> None:
        event: dict[str, Any]
        if is_text:
            event = {"text_output": "word" * num_tokens}
            if self.server_model.counts_tokens:
                event["num_output_tokens"] = num_tokens
        else:
            ids = [0] * num_tokens
            event = {"output_ids": ids if num_tokens > 1 else 0, "sequence_length": num_tokens}
        data = f"data: {json.dumps(event)}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _reply(self, status: int, value: dict[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
