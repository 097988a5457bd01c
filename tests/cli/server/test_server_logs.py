"""Tests of the command `tllm logs` with a fake tritonserver."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.cli.running import Tllm
from trtllm_serve_cli.paths import Home

# A supervisor outlives the process that started it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


def test_logs_of_a_server_that_died(
    tllm: Tllm, ports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIOUR", "fail")
    tllm("start", *ports)
    code, out, _ = tllm("logs", "-n", "1")
    assert (code, out.count("\n"), "No module named 'nowhere'" in out) == (0, 1, True)
    assert tllm("logs", "-n", "0")[1] == ""


def test_log_as_json_has_one_object_per_line(tllm: Tllm, home: Home, ports: list[str]) -> None:
    tllm("start", *ports)
    (home.servers / ports[1] / "server.log").write_text("W m] careful\nplain\n")
    _, out, _ = tllm("logs", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"text": "W m] careful", "level": "warning", "model": "m"},
        {"text": "plain", "level": "info", "model": None},
    ]


def test_log_by_level_and_by_model(tllm: Tllm, home: Home, ports: list[str]) -> None:
    tllm("start", *ports)
    with (home.servers / ports[1] / "server.log").open("a") as log:
        log.write("W m] careful\nE m] Traceback (most recent call last):\n  File\nOSError\n")
    shown = "E m] Traceback (most recent call last):\n  File\nOSError\n"
    assert tllm("logs", "--level", "error")[1] == shown
    assert tllm("logs", "--level", "warning", "--source", "m")[1] == f"W m] careful\n{shown}"
    assert tllm("logs", "--level", "warning", "-n", "1")[1] == "OSError\n"
    code, _, err = tllm("logs", "--source", "nope")
    assert (code, "The server does not have a model named 'nope'." in err) == (3, True)
    code, _, err = tllm("logs", "--gateway")
    assert (code, "The server does not serve the OpenAI-compatible API." in err) == (3, True)


def test_followed_log_has_each_line_once(tllm: Tllm, home: Home, ports: list[str]) -> None:
    tllm("start", *ports)
    log = home.servers / ports[1] / "server.log"
    log.write_text("one\ntwo\nhal")
    command = (sys.executable, "-m", "trtllm_serve_cli.cli.main", "logs", "-f")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        with log.open("a") as file:
            file.write("f\nlast\n")
        lines += [process.stdout.readline(), process.stdout.readline()]
        process.send_signal(signal.SIGINT)
    assert lines == ["one\n", "two\n", "half\n", "last\n"]
