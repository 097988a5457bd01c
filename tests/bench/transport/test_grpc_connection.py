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
# Enough to connect, where somebody lets it.
ASKING = RequestOptions(timeout_s=1.0)
# Far more than the time that a request has.
MUCH_LATER_S = 60.0


async def _fail(connection: Connection) -> str:
    """How a request fails."""

    async def receive() -> NoReturn:
        async for _ in connection.send(b""):
            pass
        raise AssertionError("it did not fail")

    with pytest.raises(SendFailed) as failed:
        await asyncio.wait_for(receive(), MUCH_LATER_S)
    return failed.value.error.kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [(7, "rejected"), (8, "cancelled"), (11, "rejected"), (0, "reset"), (2, "reset")],
)
def test_a_server_that_resets_a_call_is_there(code: int, kind: str) -> None:
    call = Call(1, 0)
    call.end(CallReset(code))
    failure = find_failure(call)
    assert failure == RequestError(kind, f"the server reset the stream (HTTP/2 error {code})")


class NoCalls(asyncio.Protocol):
    """A server that takes no calls at all."""

    def __init__(self, has_left: asyncio.Event) -> None:
        self.has_left = has_left

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(frame(SETTINGS, 0, 0, struct.pack(">HL", 3, 0)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_left.set()


def test_a_request_has_its_time_while_the_server_takes_no_calls() -> None:
    async def test() -> None:
        has_left = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: NoCalls(has_left), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = GrpcConnection(replace(MODEL, address=f"127.0.0.1:{port}"), ASKING)
        # The first is sent before the server can say so.
        assert await _fail(connection) == TIMED_OUT
        assert await asyncio.gather(_fail(connection), _fail(connection)) == [TIMED_OUT] * 2
        await connection.close()
        await has_left.wait()
        server.close()
        await server.wait_closed()

    asyncio.run(test())


@pytest.mark.parametrize("kind", [GrpcConnection, HttpConnection])
def test_a_request_has_its_time_while_the_server_lets_nobody_connect(
    kind: type[GrpcConnection | HttpConnection],
) -> None:
    async def test(monkeypatch: pytest.MonkeyPatch) -> None:
        async def wait_for_ever(*_: Any) -> NoReturn:
            await asyncio.Event().wait()
            raise AssertionError("nobody ends this")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", wait_for_ever)
        connection = kind(MODEL, ASKING)
        failures = await asyncio.gather(*(_fail(connection) for _ in range(3)))
        assert failures == [TIMED_OUT] * 3

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(test(monkeypatch))
