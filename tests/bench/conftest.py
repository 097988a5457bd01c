"""Fixtures that start fake servers on free loopback ports and stop them after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.fakes.triton.server import FakeTriton


@pytest.fixture
def serve() -> Iterator[Callable[[FakeTriton], str]]:
    """Return a function that starts a fake server and returns its gRPC address."""
    with ExitStack() as servers:
        yield lambda server: servers.enter_context(server).endpoint.grpc


@pytest.fixture
def serve_http() -> Iterator[Callable[[FakeTriton], str]]:
    """Return a function that starts a fake server and returns its HTTP address."""
    with ExitStack() as servers:
        yield lambda server: servers.enter_context(server).endpoint.http
