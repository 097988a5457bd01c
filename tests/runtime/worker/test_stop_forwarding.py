from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import wait_until
from trtllm_serve_cli.runtime.worker import stop_forwarding
from trtllm_serve_cli.runtime.worker.stop_forwarding import (
    StopForwarder,
    forward_stop,
    name_server,
)

Join = Callable[..., StopForwarder]


@pytest.fixture
def join() -> Iterator[Join]:
    """Makes an instance that runs the requests of these ids."""
    made: list[StopForwarder] = []

    def make(*running: str, group: str = "server model 1", timeout_s: float = 5.0) -> StopForwarder:
        made.append(StopForwarder(group, lambda request_id: request_id in running, timeout_s))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_stop_reaches_the_instance_that_runs_the_request(join: Join) -> None:
    asked, _, _ = join("a"), join("b"), join("c" * 20_000)
    assert [asked.pass_on(name) for name in ("b", "c" * 20_000, "nobody")] == [True, True, False]


def test_whoever_is_no_instance_hears_what_each_one_says(join: Join) -> None:
    _, _ = join("a"), join("b")
    assert sorted(forward_stop("server model 1", "a")) == [False, True]
    assert forward_stop("nobody", "a") == []


def test_instance_does_not_ask_itself(join: Join) -> None:
    assert not join("a").pass_on("a")


def test_other_groups_are_not_asked(join: Join) -> None:
    asked, _ = join(), join("a", group="server other 1")
    assert not asked.pass_on("a")


def test_every_instance_that_runs_the_id_is_stopped(join: Join) -> None:
    stopped: list[int] = []

    def stop(number: int) -> Callable[[str], bool]:
        return lambda request_id: stopped.append(number) is None

    others = [StopForwarder("server model 1", stop(number)) for number in (1, 2)]
    assert join().pass_on("a")
    assert sorted(stopped) == [1, 2]
    for each in others:
        each.close()


def test_instance_that_has_gone_is_not_asked(join: Join) -> None:
    asked, gone = join(), join("a")
    gone.close()
    assert not asked.pass_on("a")


def test_another_users_stop_is_not_heard(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, _ = join(), join("a")
    uid = os.getuid()
    monkeypatch.setattr(stop_forwarding.os, "getuid", lambda: uid + 1)
    assert not asked.pass_on("a")


def test_caller_that_says_nothing_keeps_no_one(join: Join) -> None:
    asked, busy = join(), join("a", timeout_s=0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"\0{busy.name}")
        wait_until(lambda: asked.pass_on("a"))


def test_closed_relay_leaves_no_thread(join: Join) -> None:
    before = set(threading.enumerate())
    join().close()
    assert set(threading.enumerate()) <= before


def test_processes_of_one_server_know_it_by_one_name() -> None:
    code = (
        "from trtllm_serve_cli.runtime.worker.stop_forwarding import name_server\n"
        "print(name_server())"
    )
    told = {
        subprocess.run((sys.executable, "-c", code), capture_output=True, text=True).stdout
        for _ in range(2)
    }
    assert len(told) == 1
    assert told.pop().split()[0] == str(os.getpid())
    assert name_server().split()[0] == str(os.getppid())
