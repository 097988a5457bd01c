"""`tllm metrics` as its user sees it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from tests.client import fake_triton
from tests.client.fake_triton import FakeTriton
from tests.metrics.pages import PAGE
from trtllm_serve_cli import launch
from trtllm_serve_cli.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with fake_triton.serve() as fake:
        fake.metrics_page = PAGE.encode()
        yield fake


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout and stderr of `tllm metrics` with these arguments, at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run_metrics(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tllm", "metrics", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return (int(left.value.code or 0), *capsys.readouterr())

    return run_metrics


def test_screen_reads_at_80_columns(triton: FakeTriton, run: Run) -> None:
    code, out, err = run("-u", triton.endpoint.metrics)
    lines = [line.rstrip() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert max(map(len, lines)) <= 80
    for line in (
        " engine worker   up, 2 restarts",
        " requests        7 active, 4 scheduled, 1 in context, 3 waiting, 256 at most",
        " KV cache        ██████░░░░░░░░░░░░░░░░░░ 25 %, 250 of 1000 blocks of 32 tokens",
        " memory          cpu 3 MiB",
        " CPU             98 %",
        " memory          636 MiB of 24,106 MiB",
        " GPU 0           50 %, 33,379 MiB of 143,051 MiB, 350 W of 700 W",
    ):
        assert line in lines
    assert "ensemble failed: 2 canceled, 1 backend" in lines
    assert ["ensemble", "6", "3", "5", "0.50", "2.00"] in [line.split() for line in lines]


def test_json_has_the_same_data(triton: FakeTriton, run: Run) -> None:
    code, out, err = run("-u", triton.endpoint.metrics, "--json")
    summary = json.loads(out)
    assert (code, err) == (0, "")
    assert summary["models"][0]["failures"] == {"CANCELED": 2, "BACKEND": 1}
    assert summary["engines"][0]["kv_fraction"] == 0.25


def test_raw_is_the_page(triton: FakeTriton, run: Run) -> None:
    assert run("-u", triton.endpoint.metrics, "--raw") == (0, PAGE, "")


def test_page_cut_in_the_middle_is_told(triton: FakeTriton, run: Run) -> None:
    triton.metrics_page = PAGE[:500].encode()
    code, _, err = run("-u", triton.endpoint.metrics)
    assert code == 3
    assert "The metrics page is broken." in err


def test_nobody_there(run: Run) -> None:
    code, _, err = run("-u", "127.0.0.1:1")
    assert code == 3
    assert "No server publishes metrics at 127.0.0.1:1." in err


def test_running_server_is_found(
    triton: FakeTriton, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = SimpleNamespace(endpoint=triton.endpoint, models=("demo",))
    monkeypatch.setattr(launch, "find_running", lambda home, model: running)
    assert run("--raw")[1] == PAGE


@pytest.mark.parametrize(
    "arguments",
    [("--raw", "--json"), ("--raw", "--watch"), ("-m", "x", "-u", "a:1"), ("--interval", "0")],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2


def test_watch_prints_lines_and_survives_the_server(triton: FakeTriton) -> None:
    command = [sys.executable, "-m", "trtllm_serve_cli.cli.main", "metrics", "--watch"]
    with subprocess.Popen(
        [*command, "--interval", "0.1", "-u", triton.endpoint.metrics],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.readline()
        triton.metrics_page = b"half a pa"
        gap = process.stderr.readline()
        triton.metrics_page = PAGE.replace("} 7\n", "} 8\n").encode()
        again = next(line for line in process.stdout if "active 8" in line)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert "tensorrt_llm: active 7 waiting 3 KV 25 %" in first
    assert "The metrics page is broken." in gap and "Trying again" in gap
    assert "KV 25 %" in again
    assert process.returncode == 130
