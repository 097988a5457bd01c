"""Provide a running fake Triton and a server that does not respond as fixtures."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.client.endpoint import Endpoint


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        yield fake


@pytest.fixture
def silent() -> Iterator[Endpoint]:
    """Return the address of a server that accepts connections, but does not respond."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        yield Endpoint(address, address)
