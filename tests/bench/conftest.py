"""Fake servers on free loopback ports, stopped after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from tests.bench.fake_http import FakeHttp
from tests.bench.fake_triton import FakeTriton


class _Server(Protocol):
    def start(self) -> str: ...

    def stop(self) -> None: ...


@pytest.fixture
def serve() -> Iterator[Callable[[FakeTriton], str]]:
    """Starts a fake server and gives its gRPC address."""
    yield from _serving()


@pytest.fixture
def serve_http() -> Iterator[Callable[[FakeHttp], str]]:
    """Starts a fake server and gives its HTTP address."""
    yield from _serving()


def _serving() -> Iterator[Callable[[_Server], str]]:
    servers: list[_Server] = []

    def start(server: _Server) -> str:
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()
