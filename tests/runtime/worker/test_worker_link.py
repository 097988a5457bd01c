"""Guests of an engine worker: models that ask it beside the model that started it."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import threading
import uuid
from collections.abc import Iterator

import pytest

from tests.fakes.scripted_worker import COUNT, HANG, LIMITS
from tests.fakes.scripted_worker import TELL_CANCELLED as TELL
from tests.fakes.worker_house import House
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.worker.protocol import encode_frame
from trtllm_serve_cli.runtime.worker.worker_link import (
    SharedWorkerClient,
    WorkerFailed,
    shared_socket_name,
)

READY = encode_frame({"is": "ready", "limits": dataclasses.asdict(LIMITS), "for_guests": {}})


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


def test_a_guest_whom_the_worker_gives_up_on_hears_of_it(house: House, name: str) -> None:
    guest = _arrive(name)
    assert _tokens(_ask(guest, COUNT)) == [10, 11]
    (given_up,) = house.clients
    with given_up.stuck():
        asked = [_ask(guest, HANG), _ask(guest, COUNT)]
        assert given_up.is_sending.wait(60)
        # Sent before the guest hears of it, and carried out by nobody.
        asked.append(_ask(guest, HANG))
        wait_until(lambda: given_up.num_messages == 4)
    for updates in asked:
        failed = updates.get(timeout=60)
        assert failed.error is not None and failed.error.startswith("the engine worker died")
    wait_until(lambda: guest.is_open)
    assert _tokens(_ask(guest, COUNT)) == [10, 11]
    assert house.engine.stats().active_requests == 0
    guest.close()


def test_who_shares_an_engine_waits_until_it_is_loaded(name: str) -> None:
    with listening(name) as listener:
        guest = SharedWorkerClient(name)
        came = threading.Event()

        def wait() -> None:
            guest.wait_until_open(within_s=0.3)
            came.set()

        loading, _ = listener.accept()
        waiting = threading.Thread(target=wait)
        waiting.start()
        # Longer than it would wait for a worker that is not there.
        assert not came.wait(0.6)
        loading.sendall(READY)
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


def test_steps_that_come_while_one_is_told_are_told_as_one(name: str) -> None:
    told: queue.Queue[SequenceUpdate] = queue.Queue()
    may_go_on = threading.Event()

    def tell(update: SequenceUpdate) -> None:
        told.put(update)
        assert may_go_on.wait(60)

    with listening(name) as listener:
        guest = SharedWorkerClient(name)
        worker, _ = listener.accept()
        with worker:
            worker.sendall(READY)
            wait_until(lambda: guest.is_open)
            number = guest.submit({"input_ids": (1,), "max_new_tokens": 9}, tell)
            worker.sendall(_step(SequenceUpdate(number, 0, (1,))))
            first = told.get(timeout=60)
            steps = (_step(SequenceUpdate(number, 0, (each,))) for each in (2, 3, 4))
            worker.sendall(b"".join(steps))
            may_go_on.set()
            assert [first, told.get(timeout=60)] == [
                SequenceUpdate(number, 0, (1,)),
                SequenceUpdate(number, 0, (2, 3, 4)),
            ]
            worker.sendall(_step(SequenceUpdate(number, 0, (5,), "length")))
            assert told.get(timeout=60) == SequenceUpdate(number, 0, (5,), "length")
            guest.forget(number)
        guest.close()
    assert told.empty()
