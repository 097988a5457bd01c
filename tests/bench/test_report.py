from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtllm_serve_cli.bench import report
from trtllm_serve_cli.bench.arrivals import AllAtOnce, AtConcurrency, AtRate, Load
from trtllm_serve_cli.bench.benchmark import BenchmarkResult, BenchmarkSettings
from trtllm_serve_cli.bench.core_model import CoreModel
from trtllm_serve_cli.bench.records import RequestError, RequestRecord
from trtllm_serve_cli.bench.statistics import summarize
from trtllm_serve_cli.bench.workload import TokenNormDist
from trtllm_serve_cli.errors import BadInput

RECORDS = (
    RequestRecord(0, 0.0, 0.0, 0.5, 10, (0.25, 0.5), (1, 1)),
    RequestRecord(1, 0.5, 0.5, 1.0, 10, error=RequestError("server", "no")),
)


def _result(load: Load | None = None, *, stream: bool = True) -> BenchmarkResult:
    load = load or AtRate(2)
    return BenchmarkResult(
        settings=BenchmarkSettings(TokenNormDist(), load, num_requests=2, stream=stream),
        model=CoreModel("127.0.0.1:8001", "tensorrt_llm", "1", "2.51.0", True, 8, None),
        vocab_size=1000,
        started_at="2026-11-21T09:00:00+00:00",
        is_partial=False,
        records=RECORDS,
        summary=summarize(RECORDS, load, streamed=stream),
        versions={"tllm": "0.1.0"},
        machine={"num_cpus": 2},
    )


def test_upstream_rows_have_upstreams_names() -> None:
    assert report.upstream_rows(_result().summary) == {
        "Requests/Sec": 1.0,
        "OP tokens/sec": 2.0,
        "Avg. latency (ms)": 500.0,
        "P99 latency (ms)": 500.0,
        "P90 latency (ms)": 500.0,
        "Avg. IP tokens per request": 10.0,
        "Avg. OP tokens per request": 2.0,
        "Avg. InFlight requests": 1.0,
        "Total latency (ms)": 1000.0,
        "Total requests": 2,
    }


def test_upstream_rows_leave_out_what_no_completed_request_tells() -> None:
    rows = report.upstream_rows(summarize(RECORDS[1:], AllAtOnce(), streamed=True))
    assert "Avg. latency (ms)" not in rows
    assert rows["Requests/Sec"] == 0


def test_stat_rows_list_failures_and_rates() -> None:
    assert report.stat_rows(_result().summary)[10:] == [
        ("Completed requests", "1"),
        ("Failed requests", "1"),
        ("  server", "1"),
        ("Offered rate (requests/s)", "2.00"),
        ("Achieved rate (requests/s)", "2.00"),
        ("Completed rate (requests/s)", "1.00"),
    ]


def test_closed_run_is_never_called_a_rate() -> None:
    names = [name for name, _ in report.stat_rows(_result(AtConcurrency(4)).summary)]
    assert not [name for name in names if "rate" in name]


def test_time_rows_have_token_times_only_when_streamed() -> None:
    titles = [row[0] for row in report.time_rows(_result(stream=False).summary)]
    assert titles == ["Latency", "Latency (sent)", "Schedule lag"]


def test_time_rows_fit_their_columns() -> None:
    rows = report.time_rows(_result().summary)
    assert {len(row) for row in rows} == {len(report.TIME_COLUMNS)}
    assert rows[2] == ("TTFT", *["250.0"] * 7)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (AllAtOnce(), "all at once"),
        (AtConcurrency(8), "8 in flight"),
        (AtRate(2.5), "2.5 requests/s, poisson"),
        (AtRate(2, "gamma", 0.5), "2 requests/s, gamma, burstiness 0.5"),
    ],
    ids=["all at once", "closed", "poisson", "gamma"],
)
def test_describe_load(load: Load, words: str) -> None:
    assert report.describe_load(load) == words


def test_json_tells_settings_server_and_machine() -> None:
    value = report.to_json(_result())
    assert value["schema_version"] == 1
    assert value["settings"]["load"] == {
        "kind": "rate",
        "request_rate_per_s": 2,
        "arrival": "poisson",
        "burstiness": 1.0,
    }
    assert value["vocab_size"] == {"used": 1000, "source": "fallback"}
    assert value["server"]["server_version"] == "2.51.0"
    assert value["errors"] == [{"message": "server: no", "num_requests": 1}]


def test_write_result_keeps_summary_and_every_request(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "result"
    report.write_result(_result(), folder)
    lines = (folder / "requests.jsonl").read_text().splitlines()
    assert json.loads((folder / "summary.json").read_text()) == report.to_json(_result())
    assert json.loads(lines[0]) == {
        "index": 0,
        "due_s": 0.0,
        "sent_s": 0.0,
        "end_s": 0.5,
        "num_input_tokens": 10,
        "chunk_s": [0.25, 0.5],
        "chunk_tokens": [1, 1],
        "error": None,
        "first_token_s": 0.25,
        "num_output_tokens": 2,
    }
    assert json.loads(lines[1])["error"] == {"kind": "server", "message": "no"}


def test_write_result_takes_an_empty_folder(tmp_path: Path) -> None:
    report.write_result(_result(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["requests.jsonl", "summary.json"]


@pytest.mark.parametrize("is_folder", [True, False], ids=["full folder", "file"])
def test_taken_output_is_refused_and_untouched(tmp_path: Path, is_folder: bool) -> None:
    taken = tmp_path / "result"
    kept = taken / "mine" if is_folder else taken
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    with pytest.raises(BadInput, match="is taken"):
        report.write_result(_result(), taken)
    assert kept.read_text() == "mine"
