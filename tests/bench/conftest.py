"""Fake servers on free loopback ports, stopped after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.bench.fake_triton import FakeTriton


@pytest.fixture
def serve() -> Iterator[Callable[[FakeTriton], str]]:
    """Starts a fake server and gives its address."""
    servers: list[FakeTriton] = []

    def start(server: FakeTriton) -> str:
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()
