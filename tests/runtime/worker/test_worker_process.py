"""The model's side of the conversation, with real child processes."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

import psutil
import pytest

from tests.fakes import scripted_worker
from tests.fakes.scripted_worker import BREAK, COUNT, DIE, HANG, LIMITS
from tests.fakes.scripted_worker import TELL_CANCELLED as TELL
from tests.waiting import take_whole, wait_until
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.worker.protocol import MAX_FRAME_BYTES, read_frame
from trtllm_serve_cli.runtime.worker.worker_link import SharedWorkerClient
from trtllm_serve_cli.runtime.worker.worker_process import WorkerFailed, WorkerProcess

# Says that it is ready, reads nothing, and ends when its socket is shut.
_DEAF_WORKER = f"""
import json, os, select, sys
fd = int(sys.argv[sys.argv.index("--fd") + 1])
ready = json.dumps({{"is": "ready", "limits": {asdict(LIMITS)!r}}}).encode()
os.write(fd, len(ready).to_bytes(4, "big") + ready)
poll = select.poll()
poll.register(fd, 0)
poll.poll()
"""
COMMAND = (sys.executable, scripted_worker.__file__)
_TIMEOUT_S = 60.0


class Caller:
    """Puts what a worker process tells where a test can wait for it."""

    def __init__(self, **options: Any) -> None:
        self.states: queue.Queue[tuple[bool, int]] = queue.Queue()
        self.updates: queue.Queue[SequenceUpdate] = queue.Queue()
        self.process = WorkerProcess(
            "scripted",
            options.pop("config", {}),
            command=options.pop("command", COMMAND),
            on_state=lambda is_up, num_restarts: self.states.put((is_up, num_restarts)),
            **options,
        )

    def submit(self, command: int, **fields: Any) -> int:
        given = {"input_ids": (command,), "max_new_tokens": 2, **fields}
        return self.process.submit(given, self.updates.put)

    def next_state(self) -> tuple[bool, int]:
        return self.states.get(timeout=_TIMEOUT_S)

    def next_update(self) -> SequenceUpdate:
        return self.updates.get(timeout=_TIMEOUT_S)


@contextmanager
def started(**options: Any) -> Iterator[Caller]:
    caller = Caller(**options)
    caller.process.start()
    assert (caller.process.limits, caller.next_state()) == (LIMITS, (True, 0))
    try:
        yield caller
    finally:
        caller.process.close()


def _submit_to_the_dead(caller: Caller, **fields: Any) -> None:
    with pytest.raises(WorkerFailed):
        caller.submit(COUNT, **fields)


def test_updates_go_to_whoever_sent_the_request() -> None:
    with started() as caller:
        other: queue.Queue[SequenceUpdate] = queue.Queue()
        first = caller.submit(COUNT)
        second = caller.process.submit({"input_ids": (TELL,), "max_new_tokens": 1}, other.put)
        told = [take_whole(caller.updates), take_whole(other)]
    assert told == [
        SequenceUpdate(first, 0, (10, 11), "length"),
        SequenceUpdate(second, 0, (0,), "stop"),
    ]


def test_a_cancelled_request_is_freed_and_told_no_more() -> None:
    with started() as caller:
        caller.process.cancel(caller.submit(HANG))
        after = caller.submit(TELL)
        assert caller.next_update() == SequenceUpdate(after, 0, (1,), "stop")


def test_a_forgotten_request_is_told_no_more() -> None:
    with started() as caller:
        hanging = caller.submit(HANG)
        caller.process.forget(hanging)
        caller.submit(DIE)
        assert caller.next_update().request_id == hanging + 1
        assert caller.updates.empty()


def test_an_engine_that_breaks_says_why_to_all_and_is_restarted() -> None:
    name = f"tllm-test-{uuid.uuid4()}"
    why = (
        "the engine failed (RuntimeError: the script breaks); it is being restarted, send the "
        "request again"
    )
    with started(config={"guests": name}) as caller, closing(SharedWorkerClient(name)) as guest:
        wait_until(lambda: guest.is_open)
        to_guest: queue.Queue[SequenceUpdate] = queue.Queue()
        for command in (HANG, TELL):
            guest.submit({"input_ids": (command,), "max_new_tokens": 2}, to_guest.put)
        assert to_guest.get(timeout=_TIMEOUT_S).finish_reason == "stop"
        hanging, breaking = caller.submit(HANG), caller.submit(BREAK)
        assert [caller.next_update(), caller.next_update(), to_guest.get(timeout=_TIMEOUT_S)] == [
            SequenceUpdate(hanging, error=why),
            SequenceUpdate(breaking, error=why),
            SequenceUpdate(1, error=why),
        ]
        assert [caller.next_state(), caller.next_state()] == [(False, 0), (True, 1)]


def test_statistics_are_told() -> None:
    stats: queue.Queue[Any] = queue.Queue()
    with started(on_stats=stats.put) as caller:
        caller.submit(HANG)
        assert stats.get(timeout=_TIMEOUT_S).active_requests == 1


def test_a_handler_that_raises_stops_no_other_request(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(update: SequenceUpdate) -> None:
        raise RuntimeError("the sender is closed")

    with started() as caller:
        caller.process.submit({"input_ids": (COUNT,), "max_new_tokens": 50}, refuse)
        after = caller.submit(COUNT, max_new_tokens=1)
        assert caller.next_update() == SequenceUpdate(after, 0, (10,), "length")
    assert "RuntimeError: the sender is closed" in capfd.readouterr().err


def test_a_listener_that_raises_stops_no_request(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(stats: Any) -> None:
        raise RuntimeError("the metric is gone")

    with started(on_stats=refuse) as caller:
        asked = caller.submit(COUNT, max_new_tokens=1)
        assert caller.next_update() == SequenceUpdate(asked, 0, (10,), "length")
    assert "RuntimeError: the metric is gone" in capfd.readouterr().err


def test_close_does_not_wait_for_a_worker_that_takes_nothing() -> None:
    with started(command=(sys.executable, "-c", _DEAF_WORKER)) as caller:
        words = {"stop_words": ((1,) * 1_000_000,)}
        sending = threading.Thread(target=lambda: _submit_to_the_dead(caller, **words))
        sending.start()
        sending.join(0.5)
        assert sending.is_alive()
    sending.join(_TIMEOUT_S)
    assert not sending.is_alive()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"config": {"fails": "no such model"}}, "no such model"),
        ({"command": (sys.executable, "-c", "raise SystemExit(7)")}, "exit code 7"),
        ({"command": (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")}, "signal 9"),
        ({"command": ("/no/python3",)}, "[Errno 2] No such file or directory: '/no/python3'"),
    ],
    ids=["engine", "exit code", "signal", "no program"],
)
def test_a_worker_that_does_not_start_tells_why(options: dict[str, Any], why: str) -> None:
    caller = Caller(**options)
    with pytest.raises(WorkerFailed) as failed:
        caller.process.start()
    caller.process.close()
    assert str(failed.value) == f"the engine worker did not start: {why}"


def test_the_packages_own_worker_is_the_default() -> None:
    process = WorkerProcess("abacus", {}, python=sys.executable)
    with pytest.raises(WorkerFailed, match="did not start: unknown engine kind 'abacus'"):
        process.start()


def test_a_death_fails_all_requests_and_names_the_signal() -> None:
    why = "the engine worker died (signal 9); it is being restarted, send the request again"
    with started() as caller:
        hanging, deadly = caller.submit(HANG), caller.submit(DIE)
        assert [caller.next_update(), caller.next_update()] == [
            SequenceUpdate(hanging, error=why),
            SequenceUpdate(deadly, error=why),
        ]


def test_a_dead_worker_is_started_again_and_counted() -> None:
    with started(first_backoff_s=0.0) as caller:
        for num_restarts in (1, 2):
            caller.submit(DIE)
            assert caller.next_update().error is not None
            assert caller.next_state() == (False, num_restarts - 1)
            assert caller.next_state() == (True, num_restarts)
        after = caller.submit(TELL)
        assert caller.next_update() == SequenceUpdate(after, 0, (0,), "stop")


def test_a_request_while_the_worker_is_down_is_refused() -> None:
    with started(first_backoff_s=3600.0) as caller:
        caller.submit(DIE)
        assert caller.next_update().error is not None
        with pytest.raises(WorkerFailed, match="is being restarted; send it again soon"):
            caller.submit(TELL)
        assert (caller.process.pid, caller.updates.empty()) == (None, True)


def test_a_request_too_large_for_a_frame_is_refused() -> None:
    with (
        started() as caller,
        pytest.raises(WorkerFailed, match="the request is too large: a frame of"),
    ):
        caller.submit(COUNT, input_ids=("x" * MAX_FRAME_BYTES,))


def test_close_ends_the_child_and_fails_what_runs() -> None:
    with started() as caller:
        child = psutil.Process(caller.process.pid)
        hanging = caller.submit(HANG)
    why = "the engine worker was closed; the model is being unloaded"
    told = (caller.next_update(), child.is_running(), caller.process.pid)
    assert told == (SequenceUpdate(hanging, error=why), False, None)


def test_close_while_the_worker_is_down_starts_no_other() -> None:
    with started(first_backoff_s=3600.0) as caller:
        caller.submit(DIE)
        caller.next_update()
    assert (caller.next_state(), caller.states.empty()) == ((False, 0), True)


def test_the_child_ends_by_itself_when_the_models_side_is_gone() -> None:
    ours, theirs = socket.socketpair()
    options = ("--engine", "scripted", "--fd", str(theirs.fileno()), "--config", "{}")
    with theirs:
        child = subprocess.Popen((*COMMAND, *options), pass_fds=(theirs.fileno(),))
    assert read_frame(ours) is not None
    ours.close()
    assert child.wait(timeout=_TIMEOUT_S) == 0
