"""Connect the gateway to engine workers in threads, and to sockets that the test controls."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.fakes.scripted_worker import HANG
from tests.fakes.worker_thread import WorkerThread
from tests.gateway.fakes import LetterTokenizer
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.backend import Backend
from trtllm_serve_cli.gateway.generation.connect_workers import connect_worker, connect_workers

FIELDS = {"input_ids": (HANG,), "max_new_tokens": 2}


class Engines:
    """The workers of a model's engines, some of which are running."""

    def __init__(self, num_engines: int) -> None:
        self._name = f"tllm-test-{uuid.uuid4()}"
        self._num_engines = num_engines
        self._running: dict[int, WorkerThread] = {}

    def start(self, engine: int) -> None:
        self._running[engine] = WorkerThread(
            self._socket_name(engine), client_settings={"num_engines": self._num_engines}
        )

    def stop(self, engine: int) -> None:
        self._running.pop(engine).close()

    def find_socket(self, engine: int) -> str | None:
        return self._socket_name(engine) if engine in self._running else None

    def active(self) -> dict[int, int]:
        """Return the number of active requests of each running engine."""
        return {
            engine: worker.engine.stats().active_requests
            for engine, worker in sorted(self._running.items())
        }

    def close(self) -> None:
        for engine in list(self._running):
            self.stop(engine)

    def _socket_name(self, engine: int) -> str:
        return f"{self._name}/{engine}"


@pytest.fixture
def start_engines() -> Iterator[Callable[[int], Engines]]:
    with ExitStack() as stack:

        def start(num_engines: int) -> Engines:
            engines = Engines(num_engines)
            stack.callback(engines.close)
            for engine in range(num_engines):
                engines.start(engine)
            return engines

        yield start


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def run(work: Callable[[Backend], Awaitable[None]], engines: Engines) -> None:
    async def connect_and_work() -> None:
        backend = await connect_workers(engines.find_socket, LetterTokenizer())
        assert backend is not None
        try:
            await work(backend)
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(connect_and_work(), 60))


def submit(backend: Backend, number: int) -> list[int]:
    return [backend.submit(FIELDS, lambda update: None) for _ in range(number)]


async def spread(backend: Backend, engines: Engines, each: int) -> None:
    """Submit requests until every engine runs `each` of them."""
    expected = dict.fromkeys(engines.active(), each)
    while True:
        ids = submit(backend, sum(expected.values()))
        await until(lambda: sum(engines.active().values()) == sum(expected.values()))
        if engines.active() == expected:
            return
        for request_id in ids:  # the connection to an engine is not open yet
            backend.cancel(request_id)
        await until(lambda: not any(engines.active().values()))


@pytest.mark.parametrize("num_engines", [1, 3])
def test_requests_are_spread_over_all_engines(
    start_engines: Callable[[int], Engines], num_engines: int
) -> None:
    engines = start_engines(num_engines)
    run(partial(spread, engines=engines, each=2), engines)


def test_engine_that_died_receives_requests_when_it_is_running_again(
    start_engines: Callable[[int], Engines],
) -> None:
    engines = start_engines(2)

    async def work(backend: Backend) -> None:
        await spread(backend, engines, 1)
        failed = asyncio.get_running_loop().create_future()
        for _ in range(2):
            backend.submit(
                FIELDS, lambda update: None if failed.done() else failed.set_result(update)
            )
        await asyncio.to_thread(engines.stop, 1)
        assert "retry the request" in str((await failed).error)
        submit(backend, 3)
        await until(lambda: engines.active() == {0: 5})
        await asyncio.to_thread(engines.start, 1)
        await until(lambda: bool(submit(backend, 1) and engines.active()[1]))

    run(work, engines)


def test_engine_that_is_restarting_does_not_delay_the_others(
    start_engines: Callable[[int], Engines],
) -> None:
    engines = start_engines(2)
    engines.stop(1)

    async def work(backend: Backend) -> None:
        submit(backend, 3)
        await until(lambda: engines.active() == {0: 3})
        engines.start(1)
        await until(lambda: bool(submit(backend, 1) and engines.active()[1]))

    run(work, engines)


def test_model_without_workers_has_no_backend() -> None:
    assert asyncio.run(connect_workers(lambda engine: None, LetterTokenizer())) is None


def test_worker_that_closes_the_connection_is_a_problem() -> None:
    """A worker closes the connections of other users immediately."""
    name = f"tllm-test-registry-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen()

        async def close_one() -> None:
            sock, _ = await asyncio.to_thread(listener.accept)
            sock.close()

        async def run() -> None:
            opened = connect_worker(lambda: name, LetterTokenizer(), timeout_s=0.5)
            await asyncio.gather(close_one(), opened)

        with pytest.raises(ApiError, match="as the same user"):
            asyncio.run(run())
