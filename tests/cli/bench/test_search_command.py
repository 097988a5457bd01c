"""Tests of the command `tllm bench search`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.bench.running import SMALL, invoke
from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.bench.run.search import Measured, Probe, conclude
from trtllm_serve_cli.cli.bench.search_command import check_rate_found
from trtllm_serve_cli.errors import CheckFailed, NoServer, RequestFailed


def test_search_finds_a_rate_and_writes_its_probes(server: FakeTriton, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    options = ("--slo", "latency:p95<5s", "--min-rate", "40", "--max-rate", "80")
    options += ("--output", str(folder), *SMALL)
    result = invoke("search", "token-norm-dist", "-u", server.endpoint.grpc, *options)
    assert result.exit_code == 0
    assert "Every measured rate up to 80 requests/s, the highest in the search," in result.stdout
    assert json.loads((folder / "search.json").read_text())["rate"] == 80
    assert (folder / "rate-40" / "summary.json").exists()
    assert (folder / "report.html").exists()


def test_search_reports_that_the_lowest_rate_fails() -> None:
    measured = Measured("ttft:p95<500ms", 500, None, (None, None), False, True)
    with pytest.raises(CheckFailed, match="missed an objective at the lowest rate") as failed:
        check_rate_found(conclude([Probe(2.0, 1, (measured,))], None))
    assert failed.value.why == (
        "ttft:p95<500ms was missed, because the metric is missing or too many requests failed"
    )
    assert "--min-rate 0.2" in failed.value.next_step


def test_search_reports_why_it_ended_between_two_rates() -> None:
    ended = conclude([Probe(2.0, 1, ())], "server_lost")
    with pytest.raises(NoServer, match="No server responds"):
        check_rate_found(replace(ended, error=NoServer("No server responds.")))


def test_search_reports_why_all_requests_failed(server: FakeTriton) -> None:
    server.fails_every = 1
    options = ("--slo", "latency:p95<5s", "--min-rate", "40", *SMALL)
    result = invoke("search", "token-norm-dist", "-u", server.endpoint.grpc, *options)
    assert isinstance(result.exception, RequestFailed)
    assert "(4 of 4) is server: out of cheese" in result.exception.why


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "A search requires at least one objective"),
        (("--slo", "ttft:p95<1s"), "requires --stream"),
        (("--slo", "latency<1s", "--min-rate", "0"), "not a positive finite number"),
        (("--slo", "latency<1s", "--min-rate", "3", "--max-rate", "2"), "below --min-rate"),
    ],
)
def test_search_refuses_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    result = invoke("search", "token-norm-dist", "-u", "127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
