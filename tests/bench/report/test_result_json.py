from __future__ import annotations

import json
import subprocess
import sys
from csv import DictReader
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from trtllm_serve_cli.bench.generator.client_health import WorkerLoad, judge_client
from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, AtRate, Load
from trtllm_serve_cli.bench.model.records import RequestError, RequestRecord
from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.report import result_json, tables
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult, Run
from trtllm_serve_cli.bench.stats.statistics import summarize
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.errors import BadInput

RECORDS = (
    RequestRecord(0, 0.0, 0.0, 0.5, 10, (0.25, 0.5), (1, 1)),
    RequestRecord(1, 0.5, 0.5, 1.0, 10, error=RequestError("server", "no")),
)


def _result(load: Load | None = None, *, stream: bool = True) -> BenchmarkResult:
    load = load or AtRate(2)
    summary = summarize(RECORDS, load, streamed=stream)
    workers = (WorkerLoad(1.0, 0.5, 0.4, ()),)
    return BenchmarkResult(
        settings=BenchmarkSettings(TokenNormDist(), load, num_requests=2, stream=stream),
        models=(ServedModel("127.0.0.1:8001", "tensorrt_llm", "1", "2.51.0", True, 8, None),),
        runs=(Run("2026-11-21T09:00:00+00:00", 0.0, "finished", RECORDS, workers),),
        summary=summary,
        client=judge_client(summary, load, [workers]),
        versions={"tllm": "0.1.0"},
        machine={"num_cpus": 2},
    )


def test_upstream_rows_have_upstreams_names() -> None:
    assert result_json.upstream_rows(_result().summary) == {
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


def test_upstream_rows_omit_latencies_without_completed_requests() -> None:
    rows = result_json.upstream_rows(summarize(RECORDS[1:], AllAtOnce(), streamed=True))
    assert "Avg. latency (ms)" not in rows
    assert rows["Requests/Sec"] == 0


def test_stat_rows_list_failures_and_rates() -> None:
    assert tables.stat_rows(_result().summary)[10:] == [
        ("Tokens/s per user", "4.00"),
        ("Completed requests", "1"),
        ("Failed requests", "1"),
        ("  server", "1"),
        ("Offered rate (requests/s)", "2.00"),
        ("Achieved rate (requests/s)", "2.00"),
        ("Completed rate (requests/s)", "1.00"),
    ]


def test_closed_loop_has_no_rate_rows() -> None:
    names = [name for name, _ in tables.stat_rows(_result(AtConcurrency(4)).summary)]
    assert not [name for name in names if "rate" in name]


def test_time_rows_include_token_times_only_when_streamed() -> None:
    titles = [row[0] for row in tables.time_rows(_result(stream=False).summary)]
    assert titles == ["Latency", "Latency (sent)", "Schedule lag"]


def test_time_rows_fit_their_columns() -> None:
    rows = tables.time_rows(_result().summary)
    assert {len(row) for row in rows} == {len(tables.TIME_COLUMNS)}
    assert rows[2] == ("TTFT", *["250.0"] * 8)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (AllAtOnce(), "in one burst"),
        (AtConcurrency(8), "8 in flight"),
        (AtRate(2.5), "2.5 requests/s, poisson"),
        (AtRate(2, "gamma", 0.5), "2 requests/s, gamma, burstiness 0.5"),
    ],
    ids=["in one burst", "closed", "poisson", "gamma"],
)
def test_describe_load(load: Load, words: str) -> None:
    assert tables.describe_load(load) == words


def test_json_includes_settings_server_and_machine() -> None:
    value = result_json.to_json(_result())
    assert value["schema_version"] == 2
    assert value["settings"]["load"] == {
        "kind": "rate",
        "request_rate_per_s": 2,
        "arrival": "poisson",
        "burstiness": 1.0,
        "concurrency": None,
        "ramp_s": 0.0,
    }
    assert value["vocab_size"] == {"used": 1000, "source": "fallback"}
    assert value["targets"][0]["server_version"] == "2.51.0"
    assert value["errors"] == [{"message": "server: no", "num_requests": 1}]


def test_write_result_writes_summary_and_every_request(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "result"
    result_json.write_result(_result(), folder)
    lines = (folder / "requests.jsonl").read_text().splitlines()
    expected = json.loads(json.dumps(result_json.to_json(_result())))
    assert json.loads((folder / "summary.json").read_text()) == expected
    assert json.loads(lines[0]) == {
        "index": 0,
        "due_s": 0.0,
        "sent_s": 0.0,
        "end_s": 0.5,
        "num_input_tokens": 10,
        "chunk_s": [0.25, 0.5],
        "chunk_tokens": [1, 1],
        "error": None,
        "held_s": 0.0,
        "queue_s": None,
        "run": 0,
        "target": 0,
        "conversation": None,
        "turn": 0,
        "is_ramp": False,
        "first_token_s": 0.25,
        "num_output_tokens": 2,
    }
    assert json.loads(lines[1])["error"] == {"kind": "server", "message": "no"}


def test_write_result_accepts_an_empty_folder(tmp_path: Path) -> None:
    result_json.write_result(_result(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["requests.jsonl", "summary.json"]


@pytest.mark.parametrize("is_folder", [True, False], ids=["full folder", "file"])
def test_existing_output_is_rejected_and_unchanged(tmp_path: Path, is_folder: bool) -> None:
    existing = tmp_path / "result"
    kept = existing / "mine" if is_folder else existing
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    with pytest.raises(BadInput, match="is not an empty folder"):
        result_json.write_result(_result(), existing)
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("place", ["/proc/none", "/proc/none/below", "file/below"])
def test_places_that_cannot_be_written_are_rejected(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for check in (result_json.check_output_folder, result_json.check_csv):
        with pytest.raises(BadInput, match="cannot be written"):
            check(Path(place))
    with pytest.raises(BadInput, match="cannot be written"):
        result_json.check_csv(tmp_path)


def test_csv_file_with_other_columns_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "stats.csv"
    for text in ("Requests/Sec,Total requests\n1,2\n", '{"a": 1}', "\xff"):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(BadInput, match="does not have the columns"):
            result_json.check_csv(file)
        assert file.read_text(encoding="latin-1") == text


def test_csv_file_with_rows_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "stats.csv"
    file.touch()
    result_json.check_csv(file)
    result_json.append_csv(_result().summary, file)
    result_json.check_csv(file)
    file.write_bytes(file.read_bytes().replace(b"\r\n", b"\n"))
    result_json.check_csv(file)


def test_checks_of_places_write_nothing(tmp_path: Path) -> None:
    result_json.check_output_folder(tmp_path / "new" / "folder")
    result_json.check_csv(tmp_path / "new" / "file.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("load", [AllAtOnce(), AtConcurrency(4), AtRate(2, "gamma", 0.5, 4, 1.0)])
def test_files_follow_the_schema(load: Load, tmp_path: Path) -> None:
    result = replace(_result(load), runs=_result(load).runs * 2)
    result_json.write_result(result, tmp_path)
    schema = json.loads(result_json.SCHEMA_FILE.read_text())
    line = {**schema, "$ref": "#/$defs/RequestRecord"}
    del line["type"], line["properties"], line["required"], line["additionalProperties"]
    jsonschema.validate(json.loads((tmp_path / "summary.json").read_text()), schema)
    for each in (tmp_path / "requests.jsonl").read_text().splitlines():
        jsonschema.validate(json.loads(each), line)


def test_request_records_are_read_back() -> None:
    lines = [json.loads(json.dumps(record.to_json())) for record in RECORDS]
    assert tuple(RequestRecord.from_json(line) for line in lines) == RECORDS


def test_csv_has_one_header_and_a_line_for_each_result(tmp_path: Path) -> None:
    file = tmp_path / "new" / "stats.csv"
    for _ in range(2):
        result_json.append_csv(_result().summary, file)
    header, *lines = file.read_text().splitlines()
    assert "Avg. Input tokens per request,Avg. Output tokens per request" in header
    assert len(lines) == 2


def test_csv_has_empty_cells_without_completed_requests(tmp_path: Path) -> None:
    file = tmp_path / "stats.csv"
    failed = summarize(RECORDS[1:], AllAtOnce(), streamed=True)
    for summary in (failed, _result().summary, failed):
        result_json.append_csv(summary, file)
    with file.open(newline="") as lines:
        latencies = [(row["Avg. latency (ms)"], row["Total requests"]) for row in DictReader(lines)]
    assert latencies == [("", "1"), ("500.0", "2"), ("", "1")]


def test_tables_do_not_import_jinja2() -> None:
    program = "import sys, trtllm_serve_cli.bench.report.tables; sys.exit('jinja2' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
