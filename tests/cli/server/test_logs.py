"""`tllm logs` of a server whose log is a file, without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.running import Tllm

_START = "I1122 00:22:50.354069 7003 tritonserver.cc:2598] "
_ROWS = [
    f"+{'-' * 40}+{'-' * 60}+",
    f"| Option{' ' * 33} | Value{' ' * 53} |",
    f"| server_extensions{' ' * 22} | classification sequence model_repository {' ' * 18} |",
]
_LONG = "E1122 00:22:50.354069 7003 model.cc:1] " + "x" * 90


@pytest.fixture
def tllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tllm:
    log = tmp_path / "server.log"
    log.write_text("\n".join([_START, *_ROWS, _LONG]) + "\n")
    server = SimpleNamespace(plan=SimpleNamespace(every_model=("m",), gateway=None, log=log))
    monkeypatch.setattr("trtllm_serve_cli.launch.servers.running.find_logged", lambda *_: server)
    monkeypatch.setenv("COLUMNS", "80")
    return Tllm(monkeypatch, capsys)


def test_tables_do_not_wrap_on_a_terminal(tllm: Tllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, _ = tllm("logs")
    assert code == 0
    assert out.splitlines() == [_START, *(f"{row[:79]}…" for row in _ROWS), _LONG]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_tables_are_complete_elsewhere(
    tllm: Tllm, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: bool(options))
    out = tllm("logs", *options)[1]
    assert all(row in out for row in _ROWS)
