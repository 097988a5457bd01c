"""Connections of a text model to the workers of several engines."""

from __future__ import annotations

import contextlib
import queue
import uuid
from collections.abc import Iterator, Sequence

import pytest

from tests.fakes.scripted_worker import COUNT, HANG, LIMITS
from tests.fakes.worker_thread import WorkerThread
from tests.waiting import take_whole, wait_until
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.worker.worker_link import (
    WorkerFailed,
    worker_socket_name,
)
from trtllm_serve_cli.runtime.worker.worker_pool import WorkerPool


@pytest.fixture
def name() -> str:
    return f"tllm-test-{uuid.uuid4()}"


@pytest.fixture
def workers(name: str) -> Iterator[list[WorkerThread]]:
    started = [start_worker(name, index) for index in range(2)]
    yield started
    for each in started:
        each.close()


@pytest.fixture
def pool(name: str, workers: list[WorkerThread]) -> Iterator[WorkerPool]:
    with connected(name) as pool:
        spread_once(pool, workers)
        yield pool


def start_worker(name: str, index: int) -> WorkerThread:
    """Start the worker of one of two engines."""
    settings = {"excludes_input": True, "num_engines": 2}
    return WorkerThread(worker_socket_name(name, index), client_settings=settings)


@contextlib.contextmanager
def connected(name: str) -> Iterator[WorkerPool]:
    """Return a pool with at least one connection."""
    pool = WorkerPool(name)
    pool.wait_for_reconnection(60)
    yield pool
    pool.close()


def submit(pool: WorkerPool, command: int) -> tuple[int, queue.Queue[SequenceUpdate]]:
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    fields = {"input_ids": (command,), "max_new_tokens": 2}
    return pool.submit(fields, updates.put), updates


def generate(pool: WorkerPool) -> list[int]:
    """Return the tokens of a request."""
    request_id, updates = submit(pool, COUNT)
    whole = take_whole(updates)
    pool.forget(request_id)
    return list(whole.token_ids)


def active(workers: Sequence[WorkerThread]) -> list[int]:
    return [each.engine.stats().active_requests for each in workers]


def spread_once(pool: WorkerPool, workers: Sequence[WorkerThread]) -> None:
    """Wait until the pool has connected to all workers, which happens one by one."""

    def is_spread() -> bool:
        ids = [submit(pool, HANG)[0] for _ in workers]
        wait_until(lambda: sum(active(workers)) == len(workers))
        found = active(workers)
        for each in ids:
            pool.cancel(each)
        wait_until(lambda: sum(active(workers)) == 0)
        return found == [1] * len(workers)

    wait_until(is_spread)


def test_each_request_goes_to_the_worker_with_the_fewest(
    pool: WorkerPool, workers: list[WorkerThread]
) -> None:
    ids = [submit(pool, HANG)[0] for _ in range(6)]
    wait_until(lambda: active(workers) == [3, 3])
    for each in ids[::2]:
        pool.cancel(each)
    wait_until(lambda: sum(active(workers)) == 3)
    for _ in range(3):
        submit(pool, HANG)
    wait_until(lambda: active(workers) == [3, 3])


def test_idle_pool_uses_all_workers_in_turn(pool: WorkerPool, workers: list[WorkerThread]) -> None:
    before = [num_messages(each) for each in workers]
    assert [generate(pool) for _ in range(4)] == [[10, 11]] * 4
    assert [num_messages(each) for each in workers] == [number + 2 for number in before]


def num_messages(worker: WorkerThread) -> int:
    """Return the number of messages that the worker has read from the pool."""
    return worker.clients[-1].num_messages


def test_cancelling_reaches_the_worker_of_the_request(
    pool: WorkerPool, workers: list[WorkerThread]
) -> None:
    ids = [submit(pool, HANG)[0] for _ in range(4)]
    assert len(set(ids)) == 4
    wait_until(lambda: active(workers) == [2, 2])
    for each in ids:
        pool.cancel(each)
    wait_until(lambda: active(workers) == [0, 0])


def test_worker_that_died_receives_no_requests(
    pool: WorkerPool, workers: list[WorkerThread], name: str
) -> None:
    running = dict(submit(pool, HANG) for _ in workers)
    workers[0].close()
    wait_until(lambda: any(each.qsize() for each in running.values()))
    failed = [each.get() for each in running.values() if each.qsize()]
    assert ["the engine worker died" in str(each.error) for each in failed] == [True]
    for request_id in running:
        pool.cancel(request_id)
    assert [generate(pool) for _ in range(4)] == [[10, 11]] * 4
    workers[0] = start_worker(name, 0)
    spread_once(pool, workers)


def test_has_the_limits_and_settings_of_the_engine(pool: WorkerPool) -> None:
    assert (pool.limits, pool.excludes_input, pool.was_open) == (LIMITS, True, True)


def test_request_after_a_restart_waits_for_a_connection(name: str) -> None:
    first = WorkerThread(worker_socket_name(name))
    with connected(name) as pool:
        hanging = submit(pool, HANG)[1]
        first.close()
        assert "the engine worker died" in str(hanging.get(timeout=60).error)
        with pytest.raises(WorkerFailed, match="being restarted"):
            submit(pool, COUNT)
        second = WorkerThread(worker_socket_name(name))
        pool.wait_for_reconnection(60)
        assert generate(pool) == [10, 11]
    second.close()


def test_wait_for_a_connection_is_limited(name: str) -> None:
    pool = WorkerPool(name)
    pool.wait_for_reconnection(0.01)
    assert not pool.was_open
    pool.close()
