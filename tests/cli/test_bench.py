from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.bench.fake_triton import FakeTriton
from trtllm_serve_cli.cli.bench import bench_app
from trtllm_serve_cli.errors import BadInput, NoServer, RequestFailed

SMALL = ("--num-requests", "4", "--input-mean", "8", "--output-mean", "4")


@pytest.fixture
def server() -> Iterator[FakeTriton]:
    fake = FakeTriton()
    yield fake
    fake.stop()


def _bench(*arguments: str) -> Any:
    return CliRunner().invoke(bench_app, ["token-norm-dist", *arguments])


def test_bench_prints_upstreams_rows_and_times(server: FakeTriton) -> None:
    result = _bench("-u", server.start(), "--stream", *SMALL)
    assert result.exit_code == 0
    for words in ("Requests/Sec", "Avg. OP tokens per request", "TTFT", "ITL", "TPOT"):
        assert words in result.stdout
    assert "4 requests to 127.0.0.1:" in result.stderr


def test_bench_json_is_alone_on_stdout(server: FakeTriton) -> None:
    result = _bench("-u", server.start(), "--json", "--concurrency", "2", *SMALL)
    value = json.loads(result.stdout)
    assert value["settings"]["load"] == {
        "kind": "concurrency",
        "concurrency": 2,
        "ramp_s": 0.0,
    }
    assert value["summary"]["num_completed"] == 4


def test_bench_output_keeps_the_same_data(server: FakeTriton, tmp_path: Path) -> None:
    folder = tmp_path / "result"
    result = _bench("-u", server.start(), "--json", "--output", str(folder), *SMALL)
    assert json.loads((folder / "summary.json").read_text()) == json.loads(result.stdout)
    assert len((folder / "requests.jsonl").read_text().splitlines()) == 4


def test_bench_says_when_the_vocabulary_is_not_told(server: FakeTriton) -> None:
    server.vocab_size = None
    result = _bench("-u", server.start(), *SMALL)
    assert "The server does not tell its vocabulary; random ids are below 1000." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--num-requests", "2", "--duration", "2"), "exclude each other"),
        (("--duration", "2"), "--duration needs --request-rate or --concurrency"),
        (("--ramp", "2"), "--ramp needs --request-rate or --concurrency"),
        (("--duration", "0"), "not a number above 0"),
        (("--slo", "ttft:p95<1s"), "needs --stream"),
        (("--slo", "queue:p95<1s"), "needs --server-times"),
        (("--check-perf-json", "x"), "needs --check-perf-key"),
        (("--request-rate", "0"), "not a number above 0"),
        (("--request-rate", "nan"), "not a number above 0"),
        (("--request-rate", "inf"), "not a number above 0"),
        (("--concurrency", "0"), "Invalid value"),
        (("--arrival", "constant"), "--arrival needs --request-rate"),
        (("--request-rate", "2", "--burstiness", "2"), "--burstiness needs --arrival gamma"),
        (("--num-requests", "0"), "Invalid value"),
        (("--input-mean", "0"), "Invalid value"),
        (("--seed", "-1"), "Invalid value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bench_refuses_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    result = _bench("-u", "127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_bench_names_a_dead_address() -> None:
    result = _bench("-u", "127.0.0.1:1", *SMALL)
    assert isinstance(result.exception, NoServer)


def test_bench_without_an_address_needs_a_running_server() -> None:
    result = _bench(*SMALL)
    assert isinstance(result.exception, NoServer)
    assert "tllm start" in str(result.exception)


def test_bench_refuses_a_taken_folder_before_any_load(server: FakeTriton, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = _bench("-u", server.start(), "--output", str(tmp_path), *SMALL)
    assert isinstance(result.exception, BadInput)
    assert server.received == []


def test_bench_prints_figures_even_if_every_request_failed(server: FakeTriton) -> None:
    server.fails_every = 1
    result = _bench("-u", server.start(), *SMALL)
    assert "Failed requests" in result.stdout
    assert isinstance(result.exception, RequestFailed)
    assert "Every request failed: 4 of 4." in str(result.exception)
    assert "4 of them with server: out of cheese" in str(result.exception)


def test_bench_says_why_some_requests_failed(server: FakeTriton) -> None:
    server.fails_every = 2
    result = _bench("-u", server.start(), "--warmup", "0", *SMALL)
    assert result.exit_code == 0
    assert "2 failed: server: out of cheese" in result.stderr


def test_interrupted_bench_prints_what_was_measured(server: FakeTriton) -> None:
    server.sticks_at = 3
    address = server.start()

    def interrupt_when_stuck() -> None:
        while len(server.received) < 3:
            time.sleep(0.001)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt_when_stuck)
    thread.start()
    result = _bench("-u", address, "--concurrency", "1", "--warmup", "0", *SMALL)
    thread.join()
    assert result.exit_code == 130
    assert "Interrupted requests" in result.stdout
    assert "the figures are partial" in result.stderr


def test_bench_help_shows_an_example() -> None:
    result = _bench("--help")
    assert "tllm bench token-norm-dist --num-requests 64" in result.stdout
