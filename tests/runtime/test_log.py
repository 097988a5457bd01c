"""Lines of the server's log as text and JSON."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from trtllm_serve_cli.runtime.log import render_json, render_text, write_log

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, timezone.utc)


def test_renders_a_line_as_json() -> None:
    line = json.loads(render_json("W", "request", {"id": "é", "ttft_ms": None, "model": "m"}, AT))
    assert line == {
        "time": "2026-01-02T03:04:05.678Z", "level": "warning", "message": "request",
        "model": "m", "id": "é", "ttft_ms": None,
    }  # fmt: skip


def test_renders_text_on_one_line() -> None:
    line = render_text("I", "request", {"id": "a", "error": "two\nlines", "tokens": 3})
    assert line.endswith('] request id=a error="two\\nlines" tokens=3')


def test_environment_selects_the_format(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log("I", "hello")
    assert capsys.readouterr().err.endswith("] hello\n")
    monkeypatch.setenv("TLLM_LOG_FORMAT", "json")
    write_log("E", "hello")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["message"]) == ("error", "hello")
