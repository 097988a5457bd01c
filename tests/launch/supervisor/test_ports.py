"""Ports that are free, in use or invalid."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import psutil
import pytest

from tests.ports import free_ports
from trtllm_serve_cli.errors import BadInput, LaunchFailed
from trtllm_serve_cli.launch.supervisor import ports
from trtllm_serve_cli.launch.supervisor.ports import check_ports, find_holder, try_to_listen

ME = f"{psutil.Process().name()} (pid {os.getpid()})"


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_holder_is_named(used_port: int) -> None:
    assert find_holder(used_port) == ME
    assert find_holder(free_ports(1)[0]) is None


def test_used_port_error_names_the_holder_and_the_option(used_port: int) -> None:
    (free,) = free_ports(1)
    with pytest.raises(LaunchFailed) as raised:
        check_ports("127.0.0.1", {"HTTP": free, "gRPC": used_port})
    assert str(raised.value) == (
        f"The gRPC port {used_port} is in use.\nWhy: {ME} is listening on this port\n"
        "Next: stop the process (with `tllm stop` if it is a tllm server), or choose another port "
        "with --grpc-port N"
    )


def test_port_used_on_one_address_is_used_on_all(used_port: int) -> None:
    with pytest.raises(LaunchFailed, match=f"The HTTP port {used_port} is in use"):
        check_ports("0.0.0.0", {"HTTP": used_port})


def test_port_number_out_of_range_is_rejected() -> None:
    with pytest.raises(BadInput, match=":99999") as raised:
        check_ports("127.0.0.1", {"HTTP": 99999})
    assert raised.value.why == "port numbers range from 0 to 65535"
    assert raised.value.next_step == "choose a port from 1024 to 65535 with --http-port N"


def test_port_that_needs_privileges_suggests_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(ports, "try_to_listen", lambda host, port: denied)
    with pytest.raises(BadInput) as raised:
        check_ports("127.0.0.1", {"HTTP": 80})
    assert str(raised.value) == (
        "The server cannot listen on 127.0.0.1:80.\nWhy: Permission denied\n"
        "Next: choose a port from 1024 to 65535 with --http-port N"
    )


def test_free_ports_pass() -> None:
    check_ports("127.0.0.1", dict(zip("abc", free_ports(3), strict=True)))


def test_port_in_time_wait_is_free() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        client.connect(("127.0.0.1", port))
        server.accept()[0].close()  # closing first leaves the port in TIME_WAIT
    assert try_to_listen("127.0.0.1", port) is None


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_address_of_another_machine_is_rejected(host: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(BadInput, match=f"The server cannot listen on {host}:{port}") as raised:
        check_ports(host, {"HTTP": port})
    assert raised.value.why
    assert raised.value.next_step == "pass an address of this machine with --host ADDRESS"
