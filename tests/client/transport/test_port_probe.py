"""The interface of a port."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests.samples.certificates import certify
from trtllm_serve_cli.client.transport.port_probe import probe_interface
from trtllm_serve_cli.errors import BadInput


@pytest.mark.parametrize(
    ("answer", "interface"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "http"),
        (b"\0\0\x12\x04\0\0", "grpc"),
        (b"", None),
    ],
)
def test_answer_determines_the_interface(answer: bytes, interface: str | None) -> None:
    with _port_that_answers(answer) as address:
        assert probe_interface(address) == interface


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl (apt-get install openssl)")
def test_tls_is_reported(tmp_path: Path) -> None:
    with _grpc_port_with_tls(tmp_path) as address:
        with pytest.raises(BadInput, match="requires TLS") as raised:
            probe_interface(address)
        assert f"-i openai -u https://{address}/v1" in raised.value.next_step


def test_closed_port_has_no_interface() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert probe_interface(f"127.0.0.1:{port}") is None


@contextmanager
def _port_that_answers(answer: bytes) -> Iterator[str]:
    """Answer one connection, then close the port."""

    def serve() -> None:
        connection, _ = server.accept()
        server.close()
        with connection:
            connection.recv(100)
            connection.sendall(answer)

    server = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{server.getsockname()[1]}"
    thread = threading.Thread(target=serve)
    thread.start()
    yield address
    thread.join()


@contextmanager
def _grpc_port_with_tls(folder: Path) -> Iterator[str]:
    certificate, key = certify(folder, "localhost")
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()
