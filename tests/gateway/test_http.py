from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trtllm_serve_cli.gateway.http import EventStream


@pytest.mark.parametrize(("num_checks", "is_complete"), [(1, True), (2, False)])
def test_only_a_send_that_was_pending_at_two_checks_is_cancelled(
    num_checks: int, is_complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model generates no token for longer than the timeout before the send."""

    async def run() -> list[dict[str, Any]]:
        checks: list[Callable[[], None]] = []
        sent: list[dict[str, Any]] = []
        token, sending, drained = (asyncio.Event() for _ in range(3))

        def call_later(delay_s: float, check: Callable[[], None]) -> Any:
            checks.append(check)
            return SimpleNamespace(cancel=lambda: None)

        async def events() -> AsyncGenerator[bytes, None]:
            await token.wait()
            yield b"token"

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message.get("body") == b"token":
                sending.set()
                await drained.wait()
            sent.append(message)

        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
        stream = asyncio.create_task(EventStream(events(), 60.0)({}, receive, send))
        while not checks:
            await asyncio.sleep(0)
        for _ in range(2):
            checks[-1]()
        token.set()
        await sending.wait()
        for _ in range(num_checks):
            checks[-1]()
        drained.set()
        await asyncio.gather(stream, return_exceptions=True)
        return sent

    bodies = [each["body"] for each in asyncio.run(run()) if "body" in each]
    assert bodies == ([b"token", b""] if is_complete else [])
