from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from trtllm_serve_cli.bench.generator.load_generator import LoadGenerator, ReadyRequest
from trtllm_serve_cli.bench.model.records import RequestError, RequestRecord
from trtllm_serve_cli.bench.transport.codec import Response
from trtllm_serve_cli.bench.transport.connection import Arrival, SendFailed
from trtllm_serve_cli.bench.workloads.spec import RequestSpec, Turn

FINAL = b"f"
_RESPONSES = {
    b"1": Response(1, False, ids=np.int32(9).tobytes()),
    FINAL: Response(0, True),
    b"!": Response(0, True, "no"),
}


class Server:
    """A server that sends each byte of a payload as a response and counts requests in flight."""

    def __init__(self, stamp: Callable[[], float] = time.perf_counter) -> None:
        self.stamp = stamp
        self.num_prompt_tokens = 0
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

    def count_prompt_tokens(self, spec: RequestSpec) -> int:
        return self.num_prompt_tokens

    async def close(self) -> None:
        pass

    async def send(self, payload: bytes) -> AsyncIterator[Arrival]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            for byte in payload:
                await self.gate.wait()
                await asyncio.sleep(0)
                if byte == ord("x"):
                    raise SendFailed(RequestError("unavailable", "gone"))
                yield self.stamp(), bytes([byte])
        finally:
            self.in_flight -= 1


def _requests(*payloads: bytes) -> list[ReadyRequest]:
    spec = RequestSpec(np.arange(4, dtype=np.int32), 1)
    return [ReadyRequest(index, payload, spec) for index, payload in enumerate(payloads)]


def _generator(server: Server) -> LoadGenerator:
    return LoadGenerator([server])


def _ticking(step_s: float) -> Callable[[], float]:
    """Return a clock that advances by `step_s` each time it is read."""
    return functools.partial(next, itertools.count(step_s, step_s))


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


def test_responses_are_timestamped_when_their_bytes_arrive() -> None:
    stamps = iter((2.0, 3.0, 5.0))
    generator = LoadGenerator([Server(lambda: next(stamps))], clock=lambda: 1.0)
    asyncio.run(generator.run_open(_requests(b"11f"), [0.0]))
    (record,) = generator.records
    assert (record.chunk_s, record.end_s) == ((1.0, 2.0), 4.0)


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"1x", RequestError("unavailable", "gone")),
        (b"1!", RequestError("server", "no")),
        (b"", RequestError("no_response", "the call ended without a response")),
    ],
    ids=["grpc status", "error in the response", "no response"],
)
def test_open_loop_records_failures(payload: bytes, error: RequestError) -> None:
    assert [record.error for record in _run_open(b"1f", payload)] == [None, error]


def test_response_that_ends_without_a_token_is_complete() -> None:
    (record,) = _run_open(b"f")
    assert (record.error, record.num_output_tokens, record.first_token_s) == (None, 0, None)


def test_ignores_responses_after_the_final_one() -> None:
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


def test_closed_loop_request_is_due_when_the_previous_one_ends() -> None:
    generator = _generator(Server())
    asyncio.run(generator.run_closed(_requests(b"1f", b"1f"), 1))
    first, second = generator.records
    assert second.due_s >= first.end_s


def test_cancelled_run_keeps_records_and_marks_requests_in_flight() -> None:
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


def test_cap_delays_sending_but_not_due_times() -> None:
    async def run() -> tuple[int, list[RequestRecord]]:
        server = Server()
        generator = _generator(server)
        await generator.run_open(_requests(*[b"111f"] * 6), [0.0] * 6, concurrency=2)
        return server.most_in_flight, generator.records

    most, records = asyncio.run(run())
    assert most == 2
    assert [record.due_s for record in records] == [0.0] * 6
    assert sum(record.held_s > 0 for record in records) == 4
    assert all(record.sent_s >= record.held_s for record in records)


def test_conversation_turns_are_in_order_and_include_the_history() -> None:
    async def run() -> tuple[Server, LoadGenerator]:
        server = Server()
        spec = RequestSpec(
            np.array([1, 2], np.int32),
            1,
            turns=(Turn(np.array([3], np.int32), 1), Turn(np.array([4], np.int32), 1, 0.01)),
        )
        generator = _generator(server)
        await generator.run_open([ReadyRequest(0, b"1f", spec)], [0.0])
        return server, generator

    server, generator = asyncio.run(run())
    assert server.encoded == [[1, 2, 9, 3], [1, 2, 9, 3, 9, 4]]  # the server generates 9
    first, second, third = generator.records
    assert [record.turn for record in generator.records] == [0, 1, 2]
    assert [record.num_input_tokens for record in generator.records] == [2, 4, 6]
    assert second.due_s == first.end_s
    assert third.due_s == pytest.approx(second.end_s + 0.01)
    assert {record.conversation for record in generator.records} == {0}


def test_conversation_ends_with_its_first_failure() -> None:
    generator = _generator(Server())
    spec = RequestSpec(np.array([1], np.int32), 1, turns=(Turn(np.array([3], np.int32), 1),))
    asyncio.run(generator.run_open([ReadyRequest(0, b"x", spec)], [0.0]))
    assert [record.turn for record in generator.records] == [0]


def test_ramp_requests_are_marked() -> None:
    generator = LoadGenerator([Server()], ramp_s=0.01)
    asyncio.run(generator.run_open(_requests(b"1f", b"1f"), [0.0, 0.02]))
    assert [record.is_ramp for record in generator.records] == [True, False]


def test_closed_loop_ends_with_its_duration() -> None:
    generator = LoadGenerator([Server()], clock=_ticking(0.01))
    endless = (request for _ in range(1000) for request in _requests(b"1f"))
    asyncio.run(generator.run_closed(endless, 1, duration_s=1.0))
    assert 5 < len(generator.records) < 100
    assert max(record.due_s for record in generator.records) <= 1.0


class RefusingServer(Server):
    """A server that refuses every connection."""

    async def send(self, payload: bytes) -> AsyncIterator[Arrival]:
        raise SendFailed(RequestError("connection", "refused"))
        yield 0.0, b""


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_run_ends_when_the_server_is_lost(closed: bool) -> None:
    # Each request reads the clock three times; the next is due after five reads and waits.
    generator = LoadGenerator([RefusingServer()], clock=_ticking(0.001), give_up_s=0.05)
    requests = _requests(*[b"1f"] * 2000)
    if closed:
        asyncio.run(generator.run_closed(requests, 2))
    else:
        asyncio.run(generator.run_open(requests, [0.005 * index for index in range(2000)]))
    assert generator.is_server_lost
    assert 3 <= generator.num_failed < 200


def test_run_continues_while_another_target_responds() -> None:
    generator = LoadGenerator([RefusingServer(), Server()], give_up_s=0.0)
    spec = RequestSpec(np.arange(4, dtype=np.int32), 1)
    requests = [ReadyRequest(index, b"1f", spec, index % 2) for index in range(20)]
    asyncio.run(generator.run_open(requests, [0.0] * 20))
    assert not generator.is_server_lost
    assert sum(record.is_completed for record in generator.records) == 10


def test_run_ends_when_all_targets_in_use_are_lost() -> None:
    """One of several workers may have requests for only some of the targets."""
    generator = LoadGenerator([RefusingServer(), Server()], clock=_ticking(0.001), give_up_s=0.05)
    requests = _requests(*[b"1f"] * 2000)
    asyncio.run(generator.run_open(requests, [0.005 * index for index in range(2000)]))
    assert generator.is_server_lost
    assert generator.num_failed < 200


def test_server_is_not_lost_before_the_first_request() -> None:
    assert not LoadGenerator([Server()]).is_server_lost


def test_tokens_without_text_count_with_the_next_text() -> None:
    class Texts(Server):
        def decode(self, raw: bytes) -> Response:
            return {
                b"e": Response(1, False, text=""),
                b"t": Response(1, False, text="hi"),
                FINAL: Response(1, True, text=""),
            }[raw]

    generator = LoadGenerator([Texts()])
    asyncio.run(generator.run_open(_requests(b"eetf"), [0.0]))
    assert [record.chunk_tokens for record in generator.records] == [(4,)]


def test_prompt_tokens_of_a_response_do_not_count() -> None:
    class Prompting(Server):
        def decode(self, raw: bytes) -> Response:
            ids = np.arange(5, dtype=np.int32).tobytes() if raw == b"t" else b""
            return Response(len(ids) // 4, raw == FINAL, ids=ids)

    server = Prompting()
    server.num_prompt_tokens = 3
    generator = LoadGenerator([server])
    asyncio.run(generator.run_open(_requests(b"tf"), [0.0]))
    assert [record.chunk_tokens for record in generator.records] == [(2,)]


@pytest.mark.parametrize(
    ("ids", "is_padded", "end_id", "counts"),
    [
        ([5, 6, 7, 1, 2, 9, 9], True, 9, [(2,)]),
        ([5, 6, 9, 1, 2, 3, 4], True, 9, [(4,)]),  # The prompt may contain the end token.
        ([5, 6, 7, 9, 9, 9, 9], True, 9, [()]),
        ([5, 6, 7, 1, 2, 9, 9], True, None, [(4,)]),
        ([5, 6, 7, 1, 2, 9, 9], False, 9, [(4,)]),
    ],
)
def test_padding_after_the_end_token_does_not_count(
    ids: list[int], is_padded: bool, end_id: int | None, counts: list[tuple[int, ...]]
) -> None:
    class Padding(Server):
        def decode(self, raw: bytes) -> Response:
            content = np.array(ids, np.int32).tobytes()
            return Response(len(ids), True, ids=content, is_padded=is_padded)

    server = Padding()
    server.num_prompt_tokens = 3
    generator = LoadGenerator([server])
    request = ReadyRequest(0, b"f", RequestSpec(np.arange(3, dtype=np.int32), 4, end_id=end_id))
    asyncio.run(generator.run_open([request], [0.0]))
    assert [record.chunk_tokens for record in generator.records] == counts


def test_rejection_in_a_response_is_classified_as_rejected() -> None:
    class Full(Server):
        def decode(self, raw: bytes) -> Response:
            return Response(0, True, "Exceeds maximum queue size")

    generator = LoadGenerator([Full()])
    asyncio.run(generator.run_open(_requests(b"f"), [0.0]))
    assert [r.error and r.error.kind for r in generator.records] == ["rejected"]
