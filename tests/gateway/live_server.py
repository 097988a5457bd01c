"""A gateway with a fake engine on a real HTTP server, for tests with official clients."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from tests.gateway.fakes import FakeBackend, make_client
from tests.waiting import wait_until
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.access.http_connection import limit_connections

# Prints the tools, the messages and the calls, and has Qwen's tags of calls and reasoning.
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
INFO = ModelInfo("demo", max_seq_len=5000, engine_kind="openvino", vocab_size=0x110000)


def read_prompt(backend: FakeBackend) -> str:
    """Return the prompt of the backend's only request."""
    (fields,) = backend.submitted
    return "".join(map(chr, fields["input_ids"]))


@contextlib.contextmanager
def serve(
    backend: FakeBackend, *, send_buffer_bytes: int | None = None, **changes: Any
) -> Iterator[str]:
    """Serve `make_client(backend, **changes)` in a thread, and yield its address.

    `send_buffer_bytes` is the size of the kernel's buffers for responses. Default: the kernel's.
    """
    app = make_client(backend, **changes).app
    http = limit_connections(max_header_bytes=32768, timeout_s=30)
    server = uvicorn.Server(uvicorn.Config(app, http=http, log_level="warning", lifespan="on"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if send_buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()
