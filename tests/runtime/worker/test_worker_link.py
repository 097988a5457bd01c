"""Guests of an engine worker: models that ask it beside the model that started it."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.scripted_worker import COUNT, HANG, LIMITS, ScriptedEngine
from tests.fakes.scripted_worker import TELL_CANCELLED as TELL
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.engine import GenerationRequest, SequenceUpdate
from trtllm_serve_cli.runtime.worker.protocol import encode_frame
from trtllm_serve_cli.runtime.worker.worker import Worker
from trtllm_serve_cli.runtime.worker.worker_link import (
    SharedWorkerClient,
    WorkerFailed,
    WorkerLink,
    shared_socket_name,
)


class House:
    """A worker in a thread, whose host only opens and closes the door."""

    def __init__(self, name: str, **options: Any) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        self._host, theirs = socket.socketpair()
        worker = Worker(ScriptedEngine(), theirs, listener=self._listener, **options)
        self._thread = threading.Thread(target=worker.run)
        self._thread.start()
        self._theirs = theirs
        self._worker = worker

    def close(self) -> None:
        """As the end of its process would."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._host.close()
        self._thread.join(60)
        self._theirs.close()
        for caller in self._worker._callers.values():
            # Its reader is still in there, and closing alone would tell nobody.
            with contextlib.suppress(OSError):
                caller.sock.shutdown(socket.SHUT_RDWR)
            caller.sock.close()


@pytest.fixture
def name() -> str:
    return f"tllm-test-{uuid.uuid4()}"


@pytest.fixture
def house(name: str) -> Iterator[House]:
    started = House(name, for_guests={"excludes_input": True})
    yield started
    started.close()


@contextlib.contextmanager
def listening(name: str) -> Iterator[socket.socket]:
    """Where guests of a worker that does not speak yet arrive."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        yield listener


def _arrive(name: str) -> SharedWorkerClient:
    guest = SharedWorkerClient(name)
    wait_until(lambda: guest.is_open)
    return guest


def _ask(guest: SharedWorkerClient, command: int) -> queue.Queue[SequenceUpdate]:
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    fields = {"input_ids": (command,), "max_new_tokens": 2}
    guest.submit(fields, updates.put)
    return updates


def _tokens(updates: queue.Queue[SequenceUpdate]) -> list[int]:
    tokens: list[int] = []
    while True:
        update = updates.get(timeout=60)
        assert update.error is None, update.error
        tokens += update.token_ids
        if update.finish_reason is not None:
            return tokens


def test_a_guest_is_told_what_it_needs_to_know(house: House, name: str) -> None:
    guest = _arrive(name)
    told = (guest.limits, guest.excludes_input)
    guest.close()
    assert told == (LIMITS, True)


def test_guests_number_their_requests_alike_and_have_each_their_own(
    house: House, name: str
) -> None:
    guests = [_arrive(name), _arrive(name)]
    asked = [_ask(guest, COUNT) for guest in guests for _ in range(3)]
    told = [_tokens(each) for each in asked]
    for guest in guests:
        guest.close()
    assert told == [[10, 11]] * 6


def test_what_a_guest_leaves_behind_is_cancelled(house: House, name: str) -> None:
    left, stays = _arrive(name), _arrive(name)
    _ask(left, HANG)
    _ask(left, HANG)
    assert _tokens(_ask(left, TELL)) == [0]
    left.close()
    wait_until(lambda: _tokens(_ask(stays, TELL)) == [2])
    stays.close()


def test_too_many_who_wait_are_refused_whoever_asks(name: str) -> None:
    house = House(name, num_slots=1, max_queue_size=1)
    guests = [_arrive(name), _arrive(name)]
    for _ in range(2):
        _ask(guests[0], HANG)
    refused = [_ask(guest, COUNT).get(timeout=60).error for guest in guests]
    for guest in guests:
        guest.close()
    house.close()
    assert all(why and "Maximum queue size of 1 has been reached" in why for why in refused)


def test_a_guest_outlives_the_worker_and_finds_the_next(name: str) -> None:
    house = House(name)
    guest = _arrive(name)
    hanging = _ask(guest, HANG)
    house.close()
    failed = hanging.get(timeout=60)
    assert failed.error is not None and failed.error.startswith("the engine worker died")
    wait_until(lambda: not guest.is_open)
    with pytest.raises(WorkerFailed, match="is being restarted"):
        _ask(guest, COUNT)
    house = House(name)
    wait_until(lambda: guest.is_open)
    assert _tokens(_ask(guest, COUNT)) == [10, 11]
    guest.close()
    house.close()


def test_a_guest_whom_the_worker_gives_up_on_hears_of_it(
    house: House, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: dict[str, Any]) -> None:
        raise BlockingIOError("it does not read")

    guest = _arrive(name)
    assert _tokens(_ask(guest, COUNT)) == [10, 11]
    (given_up,) = [each for number, each in house._worker._callers.items() if number]
    monkeypatch.setattr(given_up, "send", fail)
    hanging, counting = _ask(guest, HANG), _ask(guest, COUNT)
    for updates in (hanging, counting):
        failed = updates.get(timeout=60)
        assert failed.error is not None and failed.error.startswith("the engine worker died")
    # What it had sent before it heard of it.
    late = GenerationRequest(id=9, input_ids=(HANG,), max_new_tokens=2)
    house._worker._commands.put((given_up, {"do": "submit", "request": late.to_message()}))
    wait_until(lambda: guest.is_open)
    assert _tokens(_ask(guest, COUNT)) == [10, 11]
    assert house._worker._engine.stats().active_requests == 0
    guest.close()


def test_who_shares_an_engine_waits_until_it_is_loaded(name: str) -> None:
    with listening(name) as listener:
        guest = SharedWorkerClient(name)
        came = threading.Event()

        def wait() -> None:
            guest.wait_until_open(within_s=0.3)
            came.set()

        loading, _ = listener.accept()
        wait_until(lambda: guest._loading)
        waiting = threading.Thread(target=wait)
        waiting.start()
        # Longer than it would wait for a worker that is not there.
        assert not came.wait(0.6)
        limits = {name: getattr(LIMITS, name) for name in LIMITS.__slots__}
        loading.sendall(encode_frame({"is": "ready", "limits": limits, "for_guests": {}}))
        waiting.join(60)
        assert came.is_set() and guest.is_open
        guest.close()
        loading.close()


def test_who_shares_an_engine_gives_up_when_it_does_not_start(name: str) -> None:
    guest = SharedWorkerClient(name)
    with pytest.raises(WorkerFailed, match="of the first instance did not start"):
        guest.wait_until_open(within_s=0.1)


def test_a_guest_can_leave_while_the_engine_is_loaded(name: str) -> None:
    with listening(name) as listener:
        guest = SharedWorkerClient(name)
        loading, _ = listener.accept()
        leaving = threading.Thread(target=guest.close)
        leaving.start()
        leaving.join(60)
        assert (leaving.is_alive(), loading.recv(1)) == (False, b"")
        loading.close()


def test_each_model_of_a_server_has_its_own_door() -> None:
    assert shared_socket_name("a") == shared_socket_name("a") != shared_socket_name("b")


def _step(*updates: SequenceUpdate) -> bytes:
    return encode_frame({"is": "step", "updates": [each.to_wire() for each in updates]})


def test_steps_that_come_while_one_is_told_are_told_as_one() -> None:
    ours, theirs = socket.socketpair()
    link = WorkerLink()
    link._sock = ours
    told: queue.Queue[SequenceUpdate] = queue.Queue()
    may_go_on = threading.Event()

    def tell(update: SequenceUpdate) -> None:
        told.put(update)
        assert may_go_on.wait(60)

    number = link.submit({"input_ids": (1,), "max_new_tokens": 9}, tell)
    reader = threading.Thread(target=link._read_until_closed)
    reader.start()
    theirs.sendall(_step(SequenceUpdate(number, 0, (1,))))
    first = told.get(timeout=60)
    theirs.sendall(b"".join(_step(SequenceUpdate(number, 0, (each,))) for each in (2, 3, 4)))
    may_go_on.set()
    assert [first, told.get(timeout=60)] == [
        SequenceUpdate(number, 0, (1,)),
        SequenceUpdate(number, 0, (2, 3, 4)),
    ]
    theirs.sendall(_step(SequenceUpdate(number, 0, (5,), "length")))
    assert told.get(timeout=60) == SequenceUpdate(number, 0, (5,), "length")
    theirs.close()
    reader.join(60)
    assert told.empty()
