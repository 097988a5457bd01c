from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from tests.bench.transport.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    SETTINGS,
    frame,
)
from trtllm_serve_cli.bench.model.records import TIMED_OUT, RequestError
from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport.codec import RequestOptions
from trtllm_serve_cli.bench.transport.connection import Connection, SendFailed
from trtllm_serve_cli.bench.transport.grpc_connection import GrpcConnection, find_failure
from trtllm_serve_cli.bench.transport.http2 import Call, CallReset, encode_headers
from trtllm_serve_cli.bench.transport.http_connection import HttpConnection

MODEL = ServedModel("127.0.0.1:1", "tensorrt_llm", "1", "2.51.0", True, 8, 500)
# Long enough to connect to a server that accepts connections.
OPTIONS = RequestOptions(timeout_s=1.0)
# Much longer than the timeout of a request.
TEST_TIMEOUT_S = 60.0


async def _failure_kind(connection: Connection) -> str:
    """Send a request and return the kind of its failure."""

    async def receive() -> NoReturn:
        async for _ in connection.send(b""):
            pass
        raise AssertionError("the request did not fail")

    with pytest.raises(SendFailed) as failed:
        await asyncio.wait_for(receive(), TEST_TIMEOUT_S)
    return failed.value.error.kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [(7, "rejected"), (8, "cancelled"), (11, "rejected"), (0, "reset"), (2, "reset")],
)
def test_reset_call_is_not_a_connection_error(code: int, kind: str) -> None:
    call = Call(1, 0)
    call.end(CallReset(code))
    failure = find_failure(call)
    assert failure == RequestError(kind, f"the server reset the stream (HTTP/2 error {code})")


class NoStreamsServer(asyncio.Protocol):
    """A server that allows no concurrent streams."""

    def __init__(self, disconnected: asyncio.Event) -> None:
        self.disconnected = disconnected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(frame(SETTINGS, 0, 0, struct.pack(">HL", 3, 0)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.disconnected.set()


def test_request_times_out_while_the_server_allows_no_streams() -> None:
    async def test() -> None:
        disconnected = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: NoStreamsServer(disconnected), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = GrpcConnection(replace(MODEL, address=f"127.0.0.1:{port}"), OPTIONS)
        # The first request is sent before the server's settings arrive.
        assert await _failure_kind(connection) == TIMED_OUT
        assert (
            await asyncio.gather(_failure_kind(connection), _failure_kind(connection))
            == [TIMED_OUT] * 2
        )
        await connection.close()
        await disconnected.wait()
        server.close()
        await server.wait_closed()

    asyncio.run(test())


class OneStreamServer(asyncio.Protocol):
    """A server that allows one stream per connection, and responds on all but the first one."""

    def __init__(self, accepted: list[OneStreamServer]) -> None:
        self.is_first = not accepted
        self.has_limited = asyncio.Event()
        self.received = b""
        accepted.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(frame(SETTINGS, 0, 0, struct.pack(">HL", 3, 1)))

    def data_received(self, data: bytes) -> None:
        self.received += data
        if frame(SETTINGS, ACK, 0) in self.received:
            self.has_limited.set()
        if not self.is_first and frame(DATA, END_STREAM, 1) in self.received:
            trailers = encode_headers([("grpc-status", "0")])
            self.transport.write(frame(HEADERS, END_HEADERS | END_STREAM, 1, trailers))


def test_request_that_waits_for_a_stream_is_sent_over_a_new_connection() -> None:
    async def receive(connection: GrpcConnection) -> list[bytes]:
        return [raw async for _, raw in connection.send(b"")]

    async def test() -> None:
        accepted: list[OneStreamServer] = []
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: OneStreamServer(accepted), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = GrpcConnection(replace(MODEL, address=f"127.0.0.1:{port}"), RequestOptions())
        running = asyncio.ensure_future(receive(connection))
        while not accepted:
            await asyncio.sleep(0.001)
        await accepted[0].has_limited.wait()
        waiting = asyncio.ensure_future(receive(connection))
        for _ in range(10):  # let it wait for the stream
            await asyncio.sleep(0)
        accepted[0].transport.write(frame(GOAWAY, 0, 0, (1).to_bytes(4, "big") + bytes(4)))
        assert await asyncio.wait_for(waiting, TEST_TIMEOUT_S) == []
        assert (len(accepted), running.done()) == (2, False)
        accepted[0].transport.abort()
        with pytest.raises(SendFailed):
            await running
        await connection.close()
        server.close()
        await server.wait_closed()

    asyncio.run(test())


@pytest.mark.parametrize("kind", [GrpcConnection, HttpConnection])
def test_request_times_out_while_connecting(
    kind: type[GrpcConnection | HttpConnection],
) -> None:
    async def test(monkeypatch: pytest.MonkeyPatch) -> None:
        async def hang(*_: Any, **__: Any) -> NoReturn:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", hang)
        connection = kind(MODEL, OPTIONS)
        failures = await asyncio.gather(*(_failure_kind(connection) for _ in range(3)))
        assert failures == [TIMED_OUT] * 3

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(test(monkeypatch))
