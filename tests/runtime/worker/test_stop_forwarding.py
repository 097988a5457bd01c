"""Stops that instances of a model forward to each other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.waiting import wait_until
from trtllm_serve_cli.runtime.worker import abstract_socket
from trtllm_serve_cli.runtime.worker.stop_forwarding import (
    StopForwarder,
    forward_stop,
    identify_server,
)

Start = Callable[..., StopForwarder]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start an instance that runs requests with these ids."""
    made: list[StopForwarder] = []

    def make(*running: str, group: str = "server model 1", timeout_s: float = 5.0) -> StopForwarder:
        made.append(StopForwarder(group, lambda request_id: request_id in running, timeout_s))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_stop_reaches_the_instance_that_runs_the_request(start: Start) -> None:
    sender, _, _ = start("a"), start("b"), start("c" * 20_000)
    assert [sender.forward(name) for name in ("b", "c" * 20_000, "nobody")] == [True, True, False]


def test_caller_outside_the_group_receives_all_results(start: Start) -> None:
    _, _ = start("a"), start("b")
    assert sorted(forward_stop("server model 1", "a")) == [False, True]
    assert forward_stop("nobody", "a") == []


def test_instance_does_not_forward_to_itself(start: Start) -> None:
    assert not start("a").forward("a")


def test_does_not_forward_to_other_groups(start: Start) -> None:
    sender, _ = start(), start("a", group="server other 1")
    assert not sender.forward("a")


def test_stops_the_id_on_every_instance(start: Start) -> None:
    stopped: list[int] = []

    def stop(number: int) -> Callable[[str], bool]:
        return lambda request_id: stopped.append(number) is None

    others = [StopForwarder("server model 1", stop(number)) for number in (1, 2)]
    assert start().forward("a")
    assert sorted(stopped) == [1, 2]
    for each in others:
        each.close()


def test_does_not_forward_to_a_closed_instance(start: Start) -> None:
    sender, gone = start(), start("a")
    gone.close()
    assert not sender.forward("a")


def test_ignores_stops_of_another_user(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, _ = start(), start("a")
    uid = os.getuid()
    monkeypatch.setattr(abstract_socket.os, "getuid", lambda: uid + 1)
    assert not sender.forward("a")


def test_silent_connection_does_not_block_others(start: Start) -> None:
    sender, busy = start(), start("a", timeout_s=0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"\0{busy.name}")
        wait_until(lambda: sender.forward("a"))


def test_close_ends_the_thread(start: Start) -> None:
    before = set(threading.enumerate())
    start().close()
    assert set(threading.enumerate()) <= before


def test_processes_of_one_server_share_its_identifier() -> None:
    code = (
        "from trtllm_serve_cli.runtime.worker.stop_forwarding import identify_server\n"
        "print(identify_server())"
    )
    outputs = {
        subprocess.run((sys.executable, "-c", code), capture_output=True, text=True).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1
    assert outputs.pop().split()[0] == str(os.getpid())
    assert identify_server().split()[0] == str(os.getppid())


# Runs a child in a new PID namespace, as in a container.
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--map-root-user")


@pytest.mark.skipif(
    subprocess.run((*UNSHARE, "true"), capture_output=True, check=False).returncode != 0,
    reason="unshare cannot create a PID namespace here",
)
def test_server_in_a_container_has_the_same_identifier_outside() -> None:
    code = (
        "import os, sys\n"
        "from trtllm_serve_cli.runtime.worker.stop_forwarding import identify_server\n"
        "print(identify_server(os.getpid()), flush=True)\n"
        "sys.stdin.read()"
    )
    command = (*UNSHARE, sys.executable, "-c", code)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as unshare:
        assert unshare.stdout is not None
        inside = unshare.stdout.readline().strip()
        (child,) = psutil.Process(unshare.pid).children()
        outside = identify_server(child.pid)
        unshare.communicate()
    assert (inside, inside.split()[0]) == (outside, "1")
