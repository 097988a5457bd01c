from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import grpc
import pytest
from hpack import Encoder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.bench.transport.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW,
    frame,
)
from trtllm_serve_cli.bench.transport.http2 import (
    Call,
    CallReset,
    ConnectionGone,
    Http2Connection,
    encode_headers,
)


def message(content: bytes) -> bytes:
    return b"\0" + len(content).to_bytes(4, "big") + content


def block(**headers: str) -> bytes:
    encoder = Encoder()
    encoder.header_table_size = 0
    encoded: bytes = encoder.encode(list(headers.items()))
    return encoded


class RecordingTransport(asyncio.Transport):
    """A transport that records written data."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        pass

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Return kind, flags, stream and content of each frame since the last call."""
        data, self.written = self.written.removeprefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), b""
        found = []
        while data:
            length = int.from_bytes(data[:3], "big")
            found.append((*struct.unpack(">BBL", data[3:9]), data[9 : 9 + length]))
            data = data[9 + length :]
        return found


def connected() -> tuple[Http2Connection, RecordingTransport]:
    connection, wire = Http2Connection(), RecordingTransport()
    connection.connection_made(wire)
    wire.frames()
    return connection, wire


def run(test: Callable[[Http2Connection, RecordingTransport], Awaitable[None]]) -> None:
    async def within() -> None:
        await test(*connected())

    asyncio.run(within())


ANSWER = (
    frame(SETTINGS, 0, 0)
    + frame(HEADERS, END_HEADERS, 1, block(status="200"))
    + frame(DATA, 0, 1, message(b"one") + message(b"")[:3])
    + frame(PING, 0, 0, b"12345678")
    + frame(DATA, 8, 1, b"\2" + message(b"")[3:] + message(b"three") + b"\0\0")
    + frame(HEADERS, END_STREAM, 1, block(status="0")[:2])
    + frame(CONTINUATION, END_HEADERS, 1, block(status="0")[2:])
)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(ANSWER)), max_size=20))
def test_response_does_not_depend_on_packet_boundaries(cuts: list[int]) -> None:
    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        call = await connection.start(b"", b"")
        for begin, end in pairwise(sorted({0, len(ANSWER), *cuts})):
            connection.data_received(ANSWER[begin:end])
        assert [content for _, content in call.messages] == [b"one", b"", b"three"]
        assert (call.is_done, call.error, call.headers) == (True, None, {"status": "0"})
        assert (PING, ACK, 0, b"12345678") in wire.frames()

    run(test)


def test_messages_are_timestamped_when_their_last_bytes_arrive() -> None:
    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        call = await connection.start(b"", b"")
        times = []
        for part in (message(b"one"), message(b"two")[:6], message(b"two")[6:]):
            begun_s = time.perf_counter()
            connection.data_received(frame(DATA, 0, 1, part))
            times.append((begun_s, time.perf_counter()))
        for (at_s, _), (begun_s, done_s) in zip(call.messages, (times[0], times[2]), strict=True):
            assert begun_s <= at_s <= done_s

    run(test)


def test_body_that_fits_is_sent_with_its_headers() -> None:
    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        await connection.start(b"head", b"body")
        await connection.start(b"head", b"body")
        assert wire.frames() == [
            (HEADERS, END_HEADERS, 1, b"head"),
            (DATA, END_STREAM, 1, b"body"),
            (HEADERS, END_HEADERS, 3, b"head"),
            (DATA, END_STREAM, 3, b"body"),
        ]

    run(test)


@settings(deadline=None)
@example(sizes=[65536, 0], windows=[])
@given(
    sizes=st.lists(st.integers(0, 200_000), min_size=1, max_size=4),
    windows=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 100_000)), max_size=10),
)
def test_sends_no_more_than_the_windows_allow(
    sizes: list[int], windows: list[tuple[int, int]]
) -> None:
    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        room = dict.fromkeys((0, *range(1, 2 * len(sizes), 2)), 65535)
        bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
        for body in bodies:
            await connection.start(b"", body)
        sent = {stream: b"" for stream in room if stream}
        ended: set[int] = set()

        def receive() -> None:
            for kind, flags, stream, content in wire.frames():
                if kind == DATA:
                    sent[stream] += content
                    room[0] -= len(content)
                    room[stream] -= len(content)
                    if flags & END_STREAM:
                        ended.add(stream)
            assert min(room.values()) >= 0

        receive()
        for which, more in windows:
            stream = 0 if which > len(sizes) or not which else 2 * which - 1
            room[stream] += more
            connection.data_received(frame(WINDOW, 0, stream, more.to_bytes(4, "big")))
            receive()
        for stream in room:
            room[stream] += 1_000_000
            connection.data_received(frame(WINDOW, 0, stream, (1_000_000).to_bytes(4, "big")))
        receive()
        assert list(sent.values()) == bodies
        assert ended == set(sent)

    run(test)


def test_smaller_initial_window_applies_to_open_calls() -> None:
    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        call = await connection.start(b"", b"x" * 10)
        connection.data_received(frame(SETTINGS, 0, 0, struct.pack(">HL", 4, 5)))
        await connection.start(b"", b"y" * 10)
        sent = [content for kind, _, _, content in wire.frames() if kind == DATA]
        assert call.window == 5
        assert sent == [b"x" * 10, b"y" * 5]

    run(test)


def test_calls_wait_for_the_servers_stream_limit() -> None:
    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        connection.data_received(frame(SETTINGS, 0, 0, struct.pack(">HL", 3, 1)))
        first = await connection.start(b"", b"")
        second = asyncio.ensure_future(connection.start(b"", b""))
        await asyncio.sleep(0)
        assert not second.done()
        connection.data_received(frame(HEADERS, END_STREAM | END_HEADERS, 1, block(status="0")))
        assert first.is_done
        assert (await second).stream == 3

    run(test)


def test_waiting_calls_start_when_the_server_raises_the_stream_limit() -> None:
    def allow(num_streams: int) -> bytes:
        return frame(SETTINGS, 0, 0, struct.pack(">HL", 3, num_streams))

    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        connection.data_received(allow(1))
        await connection.start(b"", b"")
        waiting = [asyncio.ensure_future(connection.start(b"", b"")) for _ in range(3)]
        await asyncio.sleep(0)
        connection.data_received(allow(3))
        assert [(await each).stream for each in waiting[:2]] == [3, 5]
        assert not waiting[2].done()
        connection.data_received(allow(4))
        assert (await waiting[2]).stream == 7

    run(test)


def test_stream_slot_skips_a_cancelled_call() -> None:
    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        connection.data_received(frame(SETTINGS, 0, 0, struct.pack(">HL", 3, 1)))
        first = await connection.start(b"", b"")
        waiting = [asyncio.ensure_future(connection.start(b"", b"")) for _ in range(2)]
        await asyncio.sleep(0)
        connection.cancel(first)
        waiting[0].cancel()
        assert (await asyncio.wait_for(waiting[1], 5)).stream == 3
        assert waiting[0].cancelled()

    run(test)


def test_reset_ends_one_call_and_a_lost_connection_all() -> None:
    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        calls = [await connection.start(b"", b"") for _ in range(3)]
        connection.data_received(frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big")))
        connection.data_received(frame(GOAWAY, 0, 0, (3).to_bytes(4, "big") + bytes(4)))
        assert isinstance(calls[0].error, CallReset)
        assert not calls[1].is_done  # the server still handles it
        assert isinstance(calls[2].error, ConnectionGone)
        connection.connection_lost(None)
        assert isinstance(calls[1].error, ConnectionGone)
        with pytest.raises(ConnectionGone):
            await connection.start(b"", b"")

    run(test)


def test_calls_do_not_wait_for_a_stream_of_a_connection_that_closes() -> None:
    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        connection.data_received(frame(SETTINGS, 0, 0, struct.pack(">HL", 3, 1)))
        running = await connection.start(b"", b"")
        waiting = [asyncio.ensure_future(connection.start(b"", b"")) for _ in range(2)]
        await asyncio.sleep(0)
        connection.data_received(frame(GOAWAY, 0, 0, (1).to_bytes(4, "big") + bytes(4)))
        for each in waiting:
            with pytest.raises(ConnectionGone):
                await asyncio.wait_for(each, 5)
        assert not running.is_done

    run(test)


def test_cancel_resets_only_calls_that_have_not_ended() -> None:
    async def test(connection: Http2Connection, wire: RecordingTransport) -> None:
        calls = [await connection.start(b"", b"") for _ in range(2)]
        connection.data_received(frame(HEADERS, END_STREAM | END_HEADERS, 1, block(status="0")))
        wire.frames()
        for call in calls:
            connection.cancel(call)
        assert wire.frames() == [(RST_STREAM, 0, 3, (8).to_bytes(4, "big"))]

    run(test)


@pytest.mark.parametrize("num_bytes", [0, 1, 70_000, 3_000_000])
def test_grpc_server_handles_bodies_of_any_size(num_bytes: int) -> None:
    """The server also reports errors in trailers, with its own encoding."""

    def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
        if not request:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "nothing: 0 % of it")
        return request

    handler = grpc.method_handlers_generic_handler(
        "test.Echo", {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    )
    unlimited = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
    server = grpc.server(ThreadPoolExecutor(2), handlers=(handler,), options=unlimited)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    async def call_echo() -> Call:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Http2Connection, "127.0.0.1", port)
        headers = encode_headers(
            (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/test.Echo/Echo"),
                (":authority", "here"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            )
        )
        for _ in range(3):
            call = await connection.start(headers, message(b"x" * num_bytes))
            while not call.is_done:
                await call.wait()
                await asyncio.sleep(0)
        connection.close()
        return call

    try:
        call = asyncio.run(call_echo())
    finally:
        server.stop(None).wait()
    if num_bytes:
        assert [len(content) for _, content in call.messages] == [num_bytes]
        assert call.headers["grpc-status"] == "0"
    else:
        assert call.headers["grpc-status"] == "8"
        assert call.headers["grpc-message"].startswith("nothing: 0 %")
