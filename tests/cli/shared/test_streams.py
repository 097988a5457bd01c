"""Tests of the preparation of stdout and stderr."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable

import pytest

from trtllm_serve_cli.cli.shared import output, streams

ENCODINGS = pytest.mark.parametrize("encoding", ["ascii", "latin-1"])


def print_in(encoding: str, monkeypatch: pytest.MonkeyPatch, show: Callable[[], None]) -> str:
    """Return what `show` prints to a stdout with this encoding."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stdout)
    streams.escape_unencodable()
    show()
    stdout.seek(0)
    return stdout.read()


@ENCODINGS
def test_characters_that_stdout_lacks_are_escaped(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = print_in(encoding, monkeypatch, lambda: print("\u2192 next"))
    assert shown == "\\u2192 next\n"


@ENCODINGS
def test_json_is_valid_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\U0001f600 \u2192 \xe9"
    shown = print_in(encoding, monkeypatch, lambda: output.show_json(text))
    assert json.loads(shown) == text


def test_closed_streams_are_replaced_with_the_null_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    streams.replace_closed()
    with sys.stdin, sys.stdout, sys.stderr:
        print("lost")
        streams.flush()
        assert sys.stdin.read() == ""
