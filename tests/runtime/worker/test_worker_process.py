"""Worker processes, started by the model's side of the connection."""

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
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes import scripted_worker
from tests.fakes.scripted_worker import BREAK, COUNT, COUNT_CANCELLED, DIE, HANG, LIMITS
from tests.waiting import take_whole, wait_until
from trtllm_serve_cli.launch.logs.start_lines import read_start_lines
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.stages import WORKER_READY
from trtllm_serve_cli.runtime.worker.protocol import MAX_FRAME_BYTES, read_frame
from trtllm_serve_cli.runtime.worker.worker_link import SharedWorkerClient
from trtllm_serve_cli.runtime.worker.worker_process import WorkerFailed, WorkerProcess

# Sends `ready`, reads nothing, and ends when its socket is shut down.
_UNREADING_WORKER = f"""
import json, os, select, sys
fd = int(sys.argv[sys.argv.index("--fd") + 1])
ready = json.dumps({{"is": "ready", "limits": {asdict(LIMITS)!r}}}).encode()
os.write(fd, len(ready).to_bytes(4, "big") + ready)
poll = select.poll()
poll.register(fd, 0)
poll.poll()
"""
# Sends `ready`, and answers the first request with a frame that is not JSON.
_CONFUSED_WORKER = _UNREADING_WORKER.replace(
    "poll = ", 'os.read(fd, 1); os.write(fd, (1).to_bytes(4, "big") + b"?"); poll = '
)
COMMAND = (sys.executable, scripted_worker.__file__)
_TIMEOUT_S = 60.0


class Client:
    """A worker process whose states and updates a test can wait for."""

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
        values = {"input_ids": (command,), "max_new_tokens": 2, **fields}
        return self.process.submit(values, self.updates.put)

    def next_state(self) -> tuple[bool, int]:
        return self.states.get(timeout=_TIMEOUT_S)

    def next_update(self) -> SequenceUpdate:
        return self.updates.get(timeout=_TIMEOUT_S)


@contextmanager
def started(**options: Any) -> Iterator[Client]:
    client = Client(**options)
    client.process.start()
    assert (client.process.limits, client.next_state()) == (LIMITS, (True, 0))
    try:
        yield client
    finally:
        client.process.close()


def _submit_and_fail(client: Client, **fields: Any) -> None:
    with pytest.raises(WorkerFailed):
        client.submit(COUNT, **fields)


def test_updates_reach_the_handler_of_their_request() -> None:
    with started() as client:
        other: queue.Queue[SequenceUpdate] = queue.Queue()
        first = client.submit(COUNT)
        second = client.process.submit(
            {"input_ids": (COUNT_CANCELLED,), "max_new_tokens": 1}, other.put
        )
        updates = [take_whole(client.updates), take_whole(other)]
    assert updates == [
        SequenceUpdate(first, 0, (10, 11), "length"),
        SequenceUpdate(second, 0, (0,), "stop"),
    ]


def test_start_is_logged_with_its_stages(capfd: pytest.CaptureFixture[str]) -> None:
    with started():
        pass
    lines = capfd.readouterr().err.splitlines()
    (start,) = read_start_lines(lines, WORKER_READY)
    assert list(start.stages_s) == ["start program", "load engine"]


def test_cancelled_request_is_freed_and_receives_no_updates() -> None:
    with started() as client:
        client.process.cancel(client.submit(HANG))
        after = client.submit(COUNT_CANCELLED)
        assert client.next_update() == SequenceUpdate(after, 0, (1,), "stop")


def test_forgotten_request_receives_no_updates() -> None:
    with started() as client:
        hanging = client.submit(HANG)
        client.process.forget(hanging)
        client.submit(DIE)
        assert client.next_update().request_id == hanging + 1
        assert client.updates.empty()


def test_engine_failure_fails_all_requests_and_restarts_the_worker() -> None:
    name = f"tllm-test-{uuid.uuid4()}"
    why = (
        "the engine failed (RuntimeError: the script breaks) and is being restarted; retry the "
        "request"
    )
    with (
        started(config={"guests": name}) as client,
        closing(SharedWorkerClient(name)) as shared_client,
    ):
        wait_until(lambda: shared_client.is_open)
        shared_updates: queue.Queue[SequenceUpdate] = queue.Queue()
        for command in (HANG, COUNT_CANCELLED):
            shared_client.submit({"input_ids": (command,), "max_new_tokens": 2}, shared_updates.put)
        assert shared_updates.get(timeout=_TIMEOUT_S).finish_reason == "stop"
        hanging, breaking = client.submit(HANG), client.submit(BREAK)
        assert [
            client.next_update(),
            client.next_update(),
            shared_updates.get(timeout=_TIMEOUT_S),
        ] == [
            SequenceUpdate(hanging, error=why),
            SequenceUpdate(breaking, error=why),
            SequenceUpdate(1, error=why),
        ]
        assert [client.next_state(), client.next_state()] == [(False, 0), (True, 1)]


def test_reports_statistics() -> None:
    stats: queue.Queue[Any] = queue.Queue()
    with started(on_stats=stats.put) as client:
        client.submit(HANG)
        assert stats.get(timeout=_TIMEOUT_S).active_requests == 1


def test_failing_handler_does_not_affect_other_requests(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(update: SequenceUpdate) -> None:
        raise RuntimeError("the sender is closed")

    with started() as client:
        client.process.submit({"input_ids": (COUNT,), "max_new_tokens": 50}, fail)
        after = client.submit(COUNT, max_new_tokens=1)
        assert client.next_update() == SequenceUpdate(after, 0, (10,), "length")
    assert "RuntimeError: the sender is closed" in capfd.readouterr().err


def test_failing_statistics_callback_does_not_affect_requests(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(stats: Any) -> None:
        raise RuntimeError("the metric is gone")

    with started(on_stats=fail) as client:
        request_id = client.submit(COUNT, max_new_tokens=1)
        assert client.next_update() == SequenceUpdate(request_id, 0, (10,), "length")
    assert "RuntimeError: the metric is gone" in capfd.readouterr().err


def test_close_does_not_wait_for_a_worker_that_does_not_read() -> None:
    with started(command=(sys.executable, "-c", _UNREADING_WORKER)) as client:
        words = {"stop_words": ((1,) * 1_000_000,)}
        sending = threading.Thread(target=lambda: _submit_and_fail(client, **words))
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
def test_reports_why_a_worker_does_not_start(options: dict[str, Any], why: str) -> None:
    client = Client(**options)
    with pytest.raises(WorkerFailed) as failed:
        client.process.start()
    client.process.close()
    assert str(failed.value) == f"the engine worker did not start: {why}"


def test_runs_the_packages_worker_by_default() -> None:
    process = WorkerProcess("abacus", {}, python=sys.executable)
    with pytest.raises(WorkerFailed, match="did not start: unknown engine kind 'abacus'"):
        process.start()


def test_death_fails_all_requests_and_names_the_signal() -> None:
    why = "the engine worker died (signal 9) and is being restarted; retry the request"
    with started() as client:
        hanging, deadly = client.submit(HANG), client.submit(DIE)
        assert [client.next_update(), client.next_update()] == [
            SequenceUpdate(hanging, error=why),
            SequenceUpdate(deadly, error=why),
        ]


def test_invalid_message_fails_all_requests_and_restarts_the_worker(
    capfd: pytest.CaptureFixture[str],
) -> None:
    why = (
        "the connection to the engine worker failed (a frame is not valid JSON), so the engine "
        "worker is being restarted"
    )
    with started(command=(sys.executable, "-c", _CONFUSED_WORKER)) as client:
        hanging = client.submit(HANG)
        assert client.next_update() == SequenceUpdate(hanging, error=f"{why}; retry the request")
    assert f"] {why}\n" in capfd.readouterr().err


def test_restarts_a_dead_worker_and_counts_restarts() -> None:
    with started(first_backoff_s=0.0) as client:
        for num_restarts in (1, 2):
            client.submit(DIE)
            assert client.next_update().error is not None
            assert client.next_state() == (False, num_restarts - 1)
            assert client.next_state() == (True, num_restarts)
        after = client.submit(COUNT_CANCELLED)
        assert client.next_update() == SequenceUpdate(after, 0, (0,), "stop")


def test_counts_restarts_that_fail(tmp_path: Path) -> None:
    script = f'if [ -e "{tmp_path}/ran" ]; then exit 1; fi; touch "{tmp_path}/ran"; exec "$0" "$@"'
    with started(first_backoff_s=0.0, command=("sh", "-c", script, *COMMAND)) as client:
        client.submit(DIE)
        assert client.next_update().error is not None
        assert [client.next_state() for _ in range(3)] == [(False, 0), (False, 1), (False, 2)]


def test_rejects_requests_while_the_worker_is_down() -> None:
    with started(first_backoff_s=3600.0) as client:
        client.submit(DIE)
        assert client.next_update().error is not None
        with pytest.raises(WorkerFailed, match="is being restarted; retry the request"):
            client.submit(COUNT_CANCELLED)
        assert (client.process.pid, client.updates.empty()) == (None, True)


def test_rejects_a_request_too_large_for_a_frame() -> None:
    with (
        started() as client,
        pytest.raises(WorkerFailed, match="the request is too large: the frame is"),
    ):
        client.submit(COUNT, input_ids=("x" * MAX_FRAME_BYTES,))


def test_close_ends_the_worker_and_fails_running_requests() -> None:
    with started() as client:
        child = psutil.Process(client.process.pid)
        hanging = client.submit(HANG)
    why = "the engine worker was closed, because the model is being unloaded"
    updates = (client.next_update(), child.is_running(), client.process.pid)
    assert updates == (SequenceUpdate(hanging, error=why), False, None)


def test_close_prevents_a_restart() -> None:
    with started(first_backoff_s=3600.0) as client:
        client.submit(DIE)
        client.next_update()
    assert (client.next_state(), client.states.empty()) == ((False, 0), True)


def test_worker_ends_when_the_model_closes_its_socket() -> None:
    ours, theirs = socket.socketpair()
    options = ("--engine", "scripted", "--fd", str(theirs.fileno()), "--config", "{}")
    with theirs:
        child = subprocess.Popen((*COMMAND, *options), pass_fds=(theirs.fileno(),))
    assert read_frame(ours) is not None
    ours.close()
    assert child.wait(timeout=_TIMEOUT_S) == 0
