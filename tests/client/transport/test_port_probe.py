"""The interface of a port."""

from __future__ import annotations

import socket
import threading

import pytest

from trtllm_serve_cli.client.transport.port_probe import probe_interface


@pytest.mark.parametrize(
    ("answer", "interface"),
    [(b"HTTP/1.1 400 Bad Request\r\n", "http"), (b"\0\0\x12\x04\0\0", "grpc"), (b"", None)],
)
def test_answer_determines_the_interface(answer: bytes, interface: str | None) -> None:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        assert probe_interface(f"127.0.0.1:{server.getsockname()[1]}") == interface
        thread.join()


def test_closed_port_has_no_interface() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert probe_interface(f"127.0.0.1:{port}") is None
