from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trtllm_serve_cli.gateway.response_body import ResponseBody


def _make_cycle(written: list[bytes], **changes: Any) -> Any:
    """Return a response whose headers uvicorn has sent."""
    flow = SimpleNamespace(write_paused=changes.pop("write_paused", False))
    state = {"chunked_encoding": True, "disconnected": False, "response_complete": False}
    transport = SimpleNamespace(write=written.append)
    return SimpleNamespace(flow=flow, transport=transport, **{**state, **changes})


def test_writes_chunks() -> None:
    written: list[bytes] = []
    body = ResponseBody(_make_cycle(written))
    assert body.is_writable
    body.write(b"data: hello\n\n")
    assert written == [b"d\r\ndata: hello\n\n\r\n"]


@pytest.mark.parametrize(
    "changes",
    [
        {"chunked_encoding": None},
        {"chunked_encoding": False},
        {"disconnected": True},
        {"response_complete": True},
        {"write_paused": True},
    ],
    ids=str,
)
def test_is_not_writable(changes: dict[str, Any]) -> None:
    assert not ResponseBody(_make_cycle([], **changes)).is_writable
