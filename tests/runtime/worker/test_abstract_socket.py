"""Test that connections to processes of other users are refused."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator

import pytest

from tests.fakes import another_user
from trtllm_serve_cli.runtime.worker.abstract_socket import connect


@pytest.fixture
def name() -> Iterator[str]:
    """Listen on an abstract socket without accepting connections, and return its name."""
    name = f"tllm-test-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(0)
        yield name


@pytest.mark.parametrize("timeout_s", [0, 5.0])
def test_connects_to_a_process_of_the_same_user(name: str, timeout_s: float) -> None:
    with connect(name, timeout_s) as sock:
        assert sock.gettimeout() == timeout_s


@another_user.needs_root
def test_refuses_a_listener_of_another_user() -> None:
    name = f"tllm-test-{uuid.uuid4()}"
    refused = pytest.raises(PermissionError, match="another user")
    with another_user.listening(name, b""), refused:
        connect(name, 60.0)


def test_does_not_wait_for_a_listener_that_accepts_nothing(name: str) -> None:
    with connect(name, 0), pytest.raises(BlockingIOError):
        while True:
            connect(name, 0)


def test_reports_a_missing_listener() -> None:
    with pytest.raises(ConnectionRefusedError):
        connect(f"tllm-test-{uuid.uuid4()}", 5.0)
