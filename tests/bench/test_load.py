from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from trtllm_serve_cli.bench.connection import SendFailed
from trtllm_serve_cli.bench.load import LoadGenerator, ReadyRequest
from trtllm_serve_cli.bench.records import RequestError, RequestRecord
from trtllm_serve_cli.bench.wire import Response
from trtllm_serve_cli.bench.workloads import RequestSpec

FINAL = b"f"
_RESPONSES = {b"1": Response(1, False), FINAL: Response(0, True), b"!": Response(0, True, "no")}


class Server:
    """Answers payloads byte by byte; counts how many requests are in flight."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.most_in_flight = 0
        self.encoded: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def encode(self, spec: RequestSpec, request_id: str) -> bytes:
        self.encoded.append(spec.input_ids.tolist())
        return b"1f"

    def decode(self, raw: bytes) -> Response:
        return _RESPONSES[raw]

    async def close(self) -> None:
        pass

    async def send(self, payload: bytes) -> AsyncIterator[bytes]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            for byte in payload:
                await self.gate.wait()
                await asyncio.sleep(0)
                if byte == ord("x"):
                    raise SendFailed(RequestError("unavailable", "gone"))
                yield bytes([byte])
        finally:
            self.in_flight -= 1


def _requests(*payloads: bytes) -> list[ReadyRequest]:
    spec = RequestSpec(np.arange(4, dtype=np.int32), 1)
    return [ReadyRequest(index, payload, spec) for index, payload in enumerate(payloads)]


def _generator(server: Server) -> LoadGenerator:
    return LoadGenerator([server])


def _run_open(*payloads: bytes) -> list[RequestRecord]:
    generator = _generator(Server())
    asyncio.run(generator.run_open(_requests(*payloads), [0.0] * len(payloads)))
    return sorted(generator.records, key=lambda record: record.index)


def test_open_loop_records_each_chunk_in_order() -> None:
    (record,) = _run_open(b"111f")
    times = (record.due_s, record.sent_s, *record.chunk_s, record.end_s)
    assert record.chunk_tokens == (1, 1, 1)
    assert list(times) == sorted(times)
    assert record.first_token_s == record.chunk_s[0]
    assert record.is_completed


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"1x", RequestError("unavailable", "gone")),
        (b"1!", RequestError("server", "no")),
        (b"f", RequestError("no_tokens", "the answer ended without a token")),
    ],
    ids=["grpc status", "error in the response", "no token"],
)
def test_open_loop_records_failures(payload: bytes, error: RequestError) -> None:
    assert [record.error for record in _run_open(b"1f", payload)] == [None, error]


def test_nothing_counts_after_the_final_response() -> None:
    (record,) = _run_open(b"1f1x")
    assert (record.num_output_tokens, record.error) == (1, None)


def test_open_loop_sends_no_request_before_it_is_due() -> None:
    due_s = [0.0, 0.01, 0.02]
    generator = _generator(Server())
    asyncio.run(generator.run_open(_requests(b"1f", b"1f", b"1f"), due_s))
    assert [record.due_s for record in generator.records] == due_s
    assert all(record.sent_s >= record.due_s for record in generator.records)


def test_open_loop_does_not_wait_for_the_server() -> None:
    async def run() -> int:
        server = Server()
        server.gate.clear()
        load = asyncio.create_task(
            _generator(server).run_open(_requests(*[b"1f"] * 3), [0, 0.001, 0.002])
        )
        while server.in_flight < 3:
            await asyncio.sleep(0.001)
        server.gate.set()
        await load
        return server.most_in_flight

    assert asyncio.run(run()) == 3


def test_closed_loop_keeps_its_concurrency() -> None:
    async def run() -> tuple[int, int]:
        server = Server()
        generator = _generator(server)
        await generator.run_closed(_requests(*[b"11f"] * 10), 3)
        return server.most_in_flight, len(generator.records)

    assert asyncio.run(run()) == (3, 10)


def test_closed_loop_request_is_due_when_one_before_it_ends() -> None:
    generator = _generator(Server())
    asyncio.run(generator.run_closed(_requests(b"1f", b"1f"), 1))
    first, second = generator.records
    assert second.due_s >= first.end_s


def test_cancelled_run_keeps_records_and_marks_what_was_in_flight() -> None:
    async def run() -> LoadGenerator:
        server = Server()
        generator = _generator(server)
        load = asyncio.create_task(generator.run_open(_requests(b"1f", b"1f"), [0.0, 0.0]))
        while len(generator.records) < 2:
            await asyncio.sleep(0)
        server.gate.clear()
        load = asyncio.create_task(generator.run_open(_requests(b"1f"), [0.0]))
        while not server.in_flight:
            await asyncio.sleep(0)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        return generator

    generator = asyncio.run(run())
    assert [record.is_interrupted for record in generator.records] == [False, False, True]
    assert generator.num_failed == 0
