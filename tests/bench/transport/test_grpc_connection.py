from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from tests.bench.transport.http2_frames import SETTINGS, frame
from trtllm_serve_cli.bench.model.records import TIMED_OUT, RequestError
from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport.codec import RequestOptions
from trtllm_serve_cli.bench.transport.connection import Connection, SendFailed
from trtllm_serve_cli.bench.transport.grpc_connection import GrpcConnection, find_failure
from trtllm_serve_cli.bench.transport.http2 import Call, CallReset
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
