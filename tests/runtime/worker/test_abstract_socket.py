"""Test connections, and that those to processes of other users are refused."""

from __future__ import annotations

import errno
import os
import socket
import threading
import uuid
from collections.abc import Iterator

import pytest

from tests.fakes import another_user
from trtllm_serve_cli.runtime.worker.abstract_socket import accept_clients, connect


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


class FullProcess(socket.socket):
    """A listener of a process that cannot open files at first."""

    num_failures = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.num_failures:
            self.num_failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_accepts_clients_after_an_error_that_is_logged_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = f"tllm-test-{uuid.uuid4()}"
    with FullProcess(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        with connect(name, 60.0) as client, next(accept_clients(listener, 0.0)) as accepted:
            client.sendall(b"1")
            assert accepted.recv(1) == b"1"
    assert capfd.readouterr().err.count("a connection cannot be accepted: [Errno 24]") == 1


@pytest.mark.parametrize("is_waiting", [True, False])
def test_accepts_no_clients_after_the_listener_is_shut_down(is_waiting: bool) -> None:
    accepted: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0tllm-test-{uuid.uuid4()}")
        listener.listen()
        thread = threading.Thread(target=lambda: accepted.extend(accept_clients(listener)))
        if is_waiting:
            thread.start()
        listener.shutdown(socket.SHUT_RDWR)
        if not is_waiting:
            listener.close()
            thread.start()
        thread.join(60)
    assert (accepted, thread.is_alive()) == ([], False)
