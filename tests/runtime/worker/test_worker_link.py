"""Clients of an engine worker other than the model that started it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest

from tests.fakes import another_user
from tests.fakes.scripted_worker import COUNT, COUNT_CANCELLED, HANG, LIMITS
from tests.fakes.worker_thread import WorkerThread
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.worker.protocol import encode_frame
from trtllm_serve_cli.runtime.worker.worker_link import (
    SharedWorkerClient,
    WorkerFailed,
    worker_socket_name,
)

READY = encode_frame({"is": "ready", "limits": dataclasses.asdict(LIMITS), "for_guests": {}})


@pytest.fixture
def name() -> str:
    return f"tllm-test-{uuid.uuid4()}"


@pytest.fixture
def worker_thread(name: str) -> Iterator[WorkerThread]:
    started = WorkerThread(name, client_settings={"excludes_input": True})
    yield started
    started.close()


@contextlib.contextmanager
def listening(name: str) -> Iterator[socket.socket]:
    """Listen like a worker that has not sent anything yet."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        yield listener


@another_user.needs_root
def test_sends_nothing_to_a_worker_of_another_user(name: str) -> None:
    with another_user.listening(name, READY) as process:
        client = SharedWorkerClient(name)
        assert another_user.read(process) in another_user.REFUSED
        assert not client.is_open
        client.close()


def _connect(name: str) -> SharedWorkerClient:
    client = SharedWorkerClient(name)
    wait_until(lambda: client.is_open)
    return client


def _submit(client: SharedWorkerClient, command: int) -> queue.Queue[SequenceUpdate]:
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    fields = {"input_ids": (command,), "max_new_tokens": 2}
    client.submit(fields, updates.put)
    return updates


def _tokens(updates: queue.Queue[SequenceUpdate]) -> list[int]:
    tokens: list[int] = []
    while True:
        update = updates.get(timeout=60)
        assert update.error is None, update.error
        tokens += update.token_ids
        if update.finish_reason is not None:
            return tokens


def test_client_receives_limits_and_settings(worker_thread: WorkerThread, name: str) -> None:
    client = _connect(name)
    settings = (client.limits, client.excludes_input)
    client.close()
    assert settings == (LIMITS, True)


def test_clients_receive_only_their_own_updates(worker_thread: WorkerThread, name: str) -> None:
    clients = [_connect(name), _connect(name)]
    submitted = [_submit(client, COUNT) for client in clients for _ in range(3)]
    tokens = [_tokens(each) for each in submitted]
    for client in clients:
        client.close()
    assert tokens == [[10, 11]] * 6


def test_closing_a_client_cancels_its_requests(worker_thread: WorkerThread, name: str) -> None:
    left, stays = _connect(name), _connect(name)
    _submit(left, HANG)
    _submit(left, HANG)
    assert _tokens(_submit(left, COUNT_CANCELLED)) == [0]
    left.close()
    wait_until(lambda: _tokens(_submit(stays, COUNT_CANCELLED)) == [2])
    stays.close()


def test_queue_limit_applies_to_all_clients(name: str) -> None:
    worker_thread = WorkerThread(name, num_slots=1, max_queue_size=1)
    clients = [_connect(name), _connect(name)]
    for _ in range(2):
        _submit(clients[0], HANG)
    rejected = [_submit(client, COUNT).get(timeout=60).error for client in clients]
    for client in clients:
        client.close()
    worker_thread.close()
    assert all(why and "Maximum queue size of 1 has been reached" in why for why in rejected)


def test_client_reconnects_to_a_new_worker(name: str) -> None:
    worker_thread = WorkerThread(name)
    client = _connect(name)
    hanging = _submit(client, HANG)
    worker_thread.close()
    failed = hanging.get(timeout=60)
    assert failed.error is not None and failed.error.startswith("the engine worker died")
    wait_until(lambda: not client.is_open)
    with pytest.raises(WorkerFailed, match="is being restarted"):
        _submit(client, COUNT)
    worker_thread = WorkerThread(name)
    wait_until(lambda: client.is_open)
    assert _tokens(_submit(client, COUNT)) == [10, 11]
    client.close()
    worker_thread.close()


def test_requests_fail_when_the_worker_drops_the_client(
    worker_thread: WorkerThread, name: str
) -> None:
    client = _connect(name)
    assert _tokens(_submit(client, COUNT)) == [10, 11]
    (dropped,) = worker_thread.clients
    with dropped.stuck():
        submitted = [_submit(client, HANG), _submit(client, COUNT)]
        assert dropped.is_sending.wait(60)
        # Sent before the client detects the disconnection; the worker does not execute it.
        submitted.append(_submit(client, HANG))
        wait_until(lambda: dropped.num_messages == 4)
    for updates in submitted:
        failed = updates.get(timeout=60)
        assert failed.error is not None and failed.error.startswith("the engine worker died")
    wait_until(lambda: client.is_open)
    assert _tokens(_submit(client, COUNT)) == [10, 11]
    assert worker_thread.engine.stats().active_requests == 0
    client.close()


def test_waits_until_the_engine_is_loaded(name: str) -> None:
    with listening(name) as listener:
        client = SharedWorkerClient(name)
        has_opened = threading.Event()

        def wait() -> None:
            client.wait_until_open(timeout_s=0.3)
            has_opened.set()

        loading, _ = listener.accept()
        waiting = threading.Thread(target=wait)
        waiting.start()
        # Longer than the timeout for a missing worker.
        assert not has_opened.wait(0.6)
        loading.sendall(READY)
        waiting.join(60)
        assert has_opened.is_set() and client.is_open
        client.close()
        loading.close()


def test_fails_if_the_worker_does_not_start(name: str) -> None:
    client = SharedWorkerClient(name)
    with pytest.raises(WorkerFailed, match="of the first instance did not start"):
        client.wait_until_open(timeout_s=0.1)


def test_reports_why_the_worker_could_not_load_its_engine(name: str) -> None:
    with listening(name) as listener:
        client = SharedWorkerClient(name)
        with listener.accept()[0] as loading:
            loading.sendall(encode_frame({"is": "failed", "why": "not enough memory"}))
            with pytest.raises(WorkerFailed, match="did not start: not enough memory"):
                client.wait_until_open()


# Connects a client while the engine loads, and prints what it receives after loading has failed.
FAILING_WORKER = """
import socket
from trtllm_serve_cli.runtime.worker.protocol import read_frame
from trtllm_serve_cli.runtime.worker.worker_main import main

client = socket.socket(socket.AF_UNIX)

def load(kind, config, on_imported):
    client.connect("\\0" + NAME)
    raise RuntimeError("not enough memory")

try:
    main(load)
except RuntimeError:
    print(read_frame(client)["why"])
"""


def test_worker_that_cannot_load_its_engine_reports_why_to_waiting_clients(name: str) -> None:
    ours, theirs = socket.socketpair()
    config = json.dumps({"guests": name})
    arguments = ("--engine", "e", "--fd", str(theirs.fileno()), "--config", config)
    script = FAILING_WORKER.replace("NAME", repr(name))
    with ours, theirs:
        ended = subprocess.run(
            (sys.executable, "-c", script, *arguments),
            pass_fds=(theirs.fileno(),), capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert ended.stdout == "not enough memory\n"


def test_client_can_close_while_the_engine_is_loading(name: str) -> None:
    with listening(name) as listener:
        client = SharedWorkerClient(name)
        loading, _ = listener.accept()
        closing = threading.Thread(target=client.close)
        closing.start()
        closing.join(60)
        assert (closing.is_alive(), loading.recv(1)) == (False, b"")
        loading.close()


def test_each_engine_of_a_model_has_its_own_socket_name() -> None:
    assert worker_socket_name("a") == worker_socket_name("a", 0) == worker_socket_name("a")
    assert len({worker_socket_name(model, index) for model in "ab" for index in (0, 1)}) == 4


def _step(*updates: SequenceUpdate) -> bytes:
    return encode_frame({"is": "step", "updates": [each.to_wire() for each in updates]})


def test_merges_steps_that_arrive_during_a_delivery(name: str) -> None:
    received: queue.Queue[SequenceUpdate] = queue.Queue()
    may_return = threading.Event()

    def handle(update: SequenceUpdate) -> None:
        received.put(update)
        assert may_return.wait(60)

    with listening(name) as listener:
        client = SharedWorkerClient(name)
        worker, _ = listener.accept()
        with worker:
            worker.sendall(READY)
            wait_until(lambda: client.is_open)
            number = client.submit({"input_ids": (1,), "max_new_tokens": 9}, handle)
            worker.sendall(_step(SequenceUpdate(number, 0, (1,))))
            first = received.get(timeout=60)
            steps = (_step(SequenceUpdate(number, 0, (each,))) for each in (2, 3, 4))
            worker.sendall(b"".join(steps))
            may_return.set()
            assert [first, received.get(timeout=60)] == [
                SequenceUpdate(number, 0, (1,)),
                SequenceUpdate(number, 0, (2, 3, 4)),
            ]
            worker.sendall(_step(SequenceUpdate(number, 0, (5,), "length")))
            assert received.get(timeout=60) == SequenceUpdate(number, 0, (5,), "length")
            client.forget(number)
        client.close()
    assert received.empty()


@pytest.mark.parametrize(
    "message",
    [
        {"is": "step"},
        {"is": "step", "updates": 1},
        {"is": "step", "updates": [7]},
        {"is": "step", "updates": [[]]},
        {"is": "step", "updates": [], "stats": {"unknown": 1}},
    ],
)
def test_invalid_step_fails_the_requests_and_reconnects(
    name: str, message: dict[str, object]
) -> None:
    with listening(name) as listener:
        client = SharedWorkerClient(name)
        with listener.accept()[0] as worker:
            worker.sendall(READY)
            wait_until(lambda: client.is_open)
            updates = _submit(client, COUNT)
            worker.sendall(encode_frame(message))
            assert "a message is not a step" in str(updates.get(timeout=60).error)
        with listener.accept()[0] as worker:
            worker.sendall(READY)
            wait_until(lambda: client.is_open)
            client.close()


def test_worker_that_ends_with_unread_requests_is_not_an_error(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with listening(name) as listener:
        client = SharedWorkerClient(name)
        with listener.accept()[0] as worker:
            worker.sendall(READY)
            wait_until(lambda: client.is_open)
            updates = _submit(client, COUNT)
            assert worker.recv(1, socket.MSG_PEEK)
        # Linux resets a connection whose peer has not read everything.
        assert str(updates.get(timeout=60).error).startswith("the engine worker died")
        client.close()
    assert "failed" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "message",
    [
        {"is": "ready"},
        {"is": "ready", "limits": 7, "for_guests": {}},
        {"is": "ready", "limits": {"unknown": 1}, "for_guests": {}},
        {"is": "ready", "limits": dataclasses.asdict(LIMITS), "for_guests": []},
    ],
)
def test_client_reconnects_after_an_invalid_ready_message(
    name: str, message: dict[str, object]
) -> None:
    with listening(name) as listener:
        client = SharedWorkerClient(name)
        with listener.accept()[0] as worker:
            worker.sendall(encode_frame(message))
        with listener.accept()[0] as worker:
            worker.sendall(READY)
            wait_until(lambda: client.is_open)
            client.close()
