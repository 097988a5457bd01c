from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.fakes.triton.server import FakeTriton
from tests.samples.bench_results import make_result, store
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult
from trtllm_serve_cli.bench.run.search import Measured, Probe, conclude
from trtllm_serve_cli.cli.bench.search_command import check_rate_found
from trtllm_serve_cli.cli.bench.show_result import raise_failure
from trtllm_serve_cli.cli.main import app
from trtllm_serve_cli.cli.shared.target import BenchTarget
from trtllm_serve_cli.errors import BadInput, CheckFailed, NoServer, RequestFailed

CORE = "tensorrt_llm"
SMALL = ("--num-requests", "4", "--input-mean", "8", "--output-mean", "4")


@pytest.fixture
def server() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        yield fake


def _bench(*arguments: str) -> Any:
    return _invoke("token-norm-dist", *arguments)


def test_bench_prints_upstreams_rows_and_times(server: FakeTriton) -> None:
    result = _bench("-u", server.endpoint.grpc, "--stream", *SMALL)
    assert result.exit_code == 0
    for words in ("Requests/Sec", "Avg. OP tokens per request", "TTFT", "ITL", "TPOT"):
        assert words in result.stdout
    assert "4 requests to 127.0.0.1:" in result.stderr


def test_bench_json_is_alone_on_stdout(server: FakeTriton) -> None:
    result = _bench("-u", server.endpoint.grpc, "--json", "--concurrency", "2", *SMALL)
    value = json.loads(result.stdout)
    assert value["settings"]["load"] == {
        "kind": "concurrency",
        "concurrency": 2,
        "ramp_s": 0.0,
    }
    assert value["summary"]["num_completed"] == 4


def test_bench_output_has_the_same_data(server: FakeTriton, tmp_path: Path) -> None:
    folder = tmp_path / "result"
    result = _bench("-u", server.endpoint.grpc, "--json", "--output", str(folder), *SMALL)
    assert json.loads((folder / "summary.json").read_text()) == json.loads(result.stdout)
    assert len((folder / "requests.jsonl").read_text().splitlines()) == 4


def test_bench_reports_an_unknown_vocabulary(server: FakeTriton) -> None:
    server.parameters = {}
    result = _bench("-u", server.endpoint.grpc, *SMALL)
    assert "The vocabulary size is unknown, so random token ids are below 1000." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--num-requests", "2", "--duration", "2"), "cannot be used together"),
        (("--duration", "2"), "--duration requires --request-rate or --concurrency"),
        (("--ramp", "2"), "--ramp requires --request-rate or --concurrency"),
        (("--duration", "0"), "not a positive finite number"),
        (("--slo", "ttft:p95<1s"), "requires --stream"),
        (("--slo", "queue:p95<1s"), "requires --server-times"),
        (("--check-perf-json", "x"), "requires --check-perf-key"),
        (("--check-perf-key", "x"), "requires --check-perf-json"),
        (("--replicas", "2"), "--replicas applies only to simulated engines"),
        (("--request-rate", "0"), "not a positive finite number"),
        (("--request-rate", "nan"), "not a positive finite number"),
        (("--request-rate", "inf"), "not a positive finite number"),
        (("--concurrency", "0"), "Invalid value"),
        (("--arrival", "constant"), "--arrival requires --request-rate"),
        (("--request-rate", "2", "--burstiness", "2"), "--burstiness requires --arrival gamma"),
        (("--num-requests", "0"), "Invalid value"),
        (("--workers", "100000"), "100000 exceeds the number of CPU cores"),
        (("--input-mean", "0"), "Invalid value"),
        (("--seed", "-1"), "Invalid value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bench_refuses_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    result = _bench("-u", "127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_bench_refuses_an_address_without_a_server() -> None:
    result = _bench("-u", "127.0.0.1:1", *SMALL)
    assert isinstance(result.exception, NoServer)


def test_bench_without_an_address_needs_a_running_server() -> None:
    result = _bench(*SMALL)
    assert isinstance(result.exception, NoServer)
    assert "tllm import -m demo" in str(result.exception)


def test_bench_refuses_a_taken_folder_before_any_load(server: FakeTriton, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = _bench("-u", server.endpoint.grpc, "--output", str(tmp_path), *SMALL)
    assert isinstance(result.exception, BadInput)
    assert server.received == []


def test_bench_prints_tables_even_if_every_request_failed(server: FakeTriton) -> None:
    server.fails_every = 1
    result = _bench("-u", server.endpoint.grpc, *SMALL)
    assert "Failed requests" in result.stdout
    assert isinstance(result.exception, RequestFailed)
    assert "Every request failed (4 of 4)." in str(result.exception)
    assert "(4 of 4) is server: out of cheese" in str(result.exception)


def test_bench_prints_why_requests_failed(server: FakeTriton) -> None:
    server.fails_every = 2
    result = _bench("-u", server.endpoint.grpc, "--warmup", "0", *SMALL)
    assert result.exit_code == 0
    assert "2 of 4 requests failed. The times and rates exclude failed requests." in result.stderr
    assert "2 failed: server: out of cheese" in result.stderr


@contextmanager
def _interrupting_at(server: FakeTriton, num_requests: int) -> Iterator[None]:
    """Interrupt the block once the server has received this number of requests."""

    def interrupt() -> None:
        while len(server.received) < num_requests:
            time.sleep(0.001)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


def test_interrupted_bench_prints_what_was_measured(server: FakeTriton) -> None:
    server.sticks_at = 3
    address = server.endpoint.grpc

    with _interrupting_at(server, 3):
        result = _bench("-u", address, "--concurrency", "1", "--warmup", "0", *SMALL)
    assert result.exit_code == 130
    assert "Interrupted requests" in result.stdout
    assert "so the results are partial" in result.stderr


def test_bench_describes_the_load(server: FakeTriton) -> None:
    server.ttft_s = 0.05
    result = _bench(
        "-u", server.endpoint.grpc, "--request-rate", "500", "--concurrency", "1", *SMALL
    )
    assert "500 requests/s, poisson, at most 1 in flight" in result.stderr
    assert "so the benchmark did not reach the requested rate" in result.stderr
    assert "Offered rate" not in result.stdout


def test_bench_evaluates_objectives(server: FakeTriton) -> None:
    slo = ("--slo", "ttft:p95<60s", "--slo", "latency:p50<1us")
    result = _bench("-u", server.endpoint.grpc, "--stream", *slo, *SMALL)
    assert "Goodput (requests/s)" in result.stdout
    rows = {line.split()[0]: line.split()[-1] for line in result.stdout.splitlines() if "<" in line}
    assert rows == {"ttft:p95<60000ms": "yes", "latency:p50<0.001ms": "no"}


def test_bench_loads_several_addresses(server: FakeTriton) -> None:
    with FakeTriton() as other:
        urls = ("-u", server.endpoint.grpc, "-u", other.endpoint.grpc)
        result = _bench(*urls, "--warmup", "0", *SMALL)
    assert (len(server.received), len(other.received)) == (2, 2)
    assert result.stdout.count("tensorrt_llm at 127.0.0.1:") == 2


def test_bench_repeats_and_shows_each_run(server: FakeTriton) -> None:
    result = _bench("-u", server.endpoint.grpc, "--repeat", "2", "--json", *SMALL)
    runs = json.loads(result.stdout)["runs"]
    assert len(runs["summaries"]) == 2
    assert len(runs["across"]["completed_requests_per_s"]["values"]) == 2


def test_bench_fails_if_results_differ_from_the_reference(
    server: FakeTriton, tmp_path: Path
) -> None:
    reference = tmp_path / "perf.json"
    reference.write_text('{"a": {"Avg. Output tokens per request": 1000}}')
    check = ("--check-perf-json", str(reference), "--check-perf-key", "a")
    result = _bench("-u", server.endpoint.grpc, *check, *SMALL)
    assert isinstance(result.exception, CheckFailed)
    assert "Avg. OP tokens per request" in result.stdout


def test_bench_writes_upstreams_csv(server: FakeTriton, tmp_path: Path) -> None:
    _bench("-u", server.endpoint.grpc, "--op-stats-csv", str(tmp_path / "a.csv"), *SMALL)
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 2


def test_bench_reports_a_lost_server(server: FakeTriton) -> None:
    address = server.endpoint.grpc

    def stop_when_loaded() -> None:
        while len(server.received) < 4:
            time.sleep(0.001)
        server.stop()

    thread = threading.Thread(target=stop_when_loaded)
    thread.start()
    result = _bench("-u", address, "--request-rate", "20", "--duration", "3600", "--warmup", "0")
    thread.join()
    assert isinstance(result.exception, RequestFailed)
    assert "connection to the server was lost" in str(result.exception)
    assert "Failed requests" in result.stdout


def test_bench_of_text_needs_a_model_that_takes_it(server: FakeTriton) -> None:
    result = _invoke("end-to-end", "-u", server.endpoint.grpc, "-m", CORE)
    assert isinstance(result.exception, BadInput)
    assert "does not accept text" in str(result.exception)


LOADS = {
    (): ("--num-requests", "2"),
    ("sweep",): ("--num-requests", "2", "--concurrency", "1,2"),
    ("search",): ("--duration", "0.2", "--slo", "latency:p95<9s", "--max-rate", "2"),
}


@pytest.mark.parametrize("group", LOADS, ids=lambda group: "".join(group) or "bench")
def test_bench_of_text_checks_answers_once(server: FakeTriton, group: tuple[str, ...]) -> None:
    words = (*group, "end-to-end", "-u", server.endpoint.grpc, "-m", "ensemble")
    result = _invoke(*words, *LOADS[group])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("Functionality check passed") == 1
    assert [each.model for each in server.requests[:3]] == [
        "ensemble",
        "ensemble",
        "tensorrt_llm_bls",
    ]


def test_bench_of_text_does_not_start_if_answers_differ(server: FakeTriton) -> None:
    server.answer = lambda request: iter([{"text_output": [str(len(server.requests))]}])
    words = ("end-to-end", "-u", server.endpoint.grpc, "-m", "ensemble", "--num-requests", "5")
    result = _invoke(*words)
    assert isinstance(result.exception, CheckFailed)
    assert len(server.requests) == 2


def test_check_of_answers_can_be_skipped(server: FakeTriton) -> None:
    words = ("end-to-end", "-u", server.endpoint.grpc, "-m", "ensemble", "--num-requests", "5")
    result = _invoke(*words, "--no-check-answers", "--warmup", "0")
    assert (result.exit_code, len(server.requests)) == (0, 5)
    assert "Functionality check" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-input-len", "9"), "--max-input-len applies only to data sets"),
        (("--op-tokens-per-word", "1.3"), "--op-tokens-per-word applies only to data sets"),
        (
            ("--dataset", "x.json", "--input-words", "9"),
            "--input-words applies only to random prompts",
        ),
    ],
    ids=lambda value: value[-2] if isinstance(value, tuple) else "",
)
def test_bench_of_text_refuses_unused_options(arguments: tuple[str, ...], words: str) -> None:
    result = _invoke("end-to-end", "-u", "127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_bench_of_a_data_set_needs_a_tokenizer(server: FakeTriton, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "hello", "output_length": 3}')
    arguments = ["dataset", "--dataset", str(file), "-u", server.endpoint.grpc]
    result = _invoke(*arguments)
    assert isinstance(result.exception, BadInput)
    assert "--tokenizer DIR" in str(result.exception)


def test_bench_replays_a_trace(server: FakeTriton, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [{"timestamp": n * 10, "input_length": 5, "output_length": n + 1} for n in range(3)]
    file.write_text("\n".join(map(json.dumps, lines)))
    arguments = ["trace", str(file), "-u", server.endpoint.grpc, "--speed", "2", "--json"]
    value = json.loads(_invoke(*arguments).stdout)
    assert value["summary"]["num_output_tokens"] == 6
    assert value["settings"]["load"] == {"kind": "trace", "speed": 2.0, "concurrency": None}
    assert value["summary"]["offered_requests_per_s"] == 200


def test_ramp_of_a_trace_requires_a_rate(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1}')
    result = _invoke("trace", str(file), "-u", "127.0.0.1:1", "--concurrency", "2", "--ramp", "2")
    assert result.exit_code == 2
    assert "With a trace, --ramp requires --request-rate." in " ".join(result.stderr.split())


def test_bench_help_shows_an_example() -> None:
    result = _bench("--help")
    assert "tllm bench token-norm-dist --num-requests 64" in result.stdout


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ("bench", *arguments))


def test_output_has_a_page_and_a_trace(server: FakeTriton, tmp_path: Path) -> None:
    result = _bench("-u", server.endpoint.grpc, "--stream", "--output", str(tmp_path / "a"), *SMALL)
    assert "\nReport: " in result.stderr
    assert (tmp_path / "a" / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "a" / "trace.json").read_text())["traceEvents"]


def test_report_of_one_result_or_several(server: FakeTriton, tmp_path: Path) -> None:
    url = server.endpoint.grpc
    folders = [str(tmp_path / name) for name in ("a", "b")]
    for folder in folders:
        _bench("-u", url, "--stream", "--output", folder, *SMALL)
    (tmp_path / "a" / "report.html").unlink()
    assert _invoke("report", folders[0]).stdout.strip() == f"{folders[0]}/report.html"
    page, trace = tmp_path / "new" / "page.html", tmp_path / "new" / "trace.json"
    assert _invoke("report", *folders, "-o", str(page)).exit_code == 0
    assert "2 loads" in page.read_text()
    assert _invoke("report", folders[0], "--trace", str(trace)).exit_code == 0
    assert trace.exists()
    assert _invoke("report", *folders).exit_code == 2
    assert _invoke("report", *folders, "-o", str(page), "--trace", str(trace)).exit_code == 2


def test_report_goes_to_a_file(results: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "file").touch()
    for option in ("-o", "--trace"):
        assert _invoke("report", results[0], option, str(tmp_path / "pages")).exit_code == 2
        below = _invoke("report", results[0], option, str(tmp_path / "file" / "page.html"))
        assert isinstance(below.exception, BadInput)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "before", "file", "pages"]


def test_report_of_no_result_is_refused(tmp_path: Path) -> None:
    assert isinstance(_invoke("report", str(tmp_path)).exception, BadInput)


@pytest.fixture
def results(tmp_path: Path) -> tuple[str, str]:
    """Return two results, of which the second is 25 % slower."""
    before = store(make_result(runs=3), tmp_path / "before")
    after = store(make_result(runs=3, gap_s=0.025), tmp_path / "after")
    return str(before), str(after)


def test_compare_marks_what_is_worse_in_80_columns(results: tuple[str, str]) -> None:
    result = _invoke("compare", *results)
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if "itl:p50" in line)
    assert "WORSE" in row
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "between runs (3 and 3 runs, " in result.stderr


def test_compare_fails_beyond_its_limits(results: tuple[str, str]) -> None:
    assert _invoke("compare", *results, "--fail-on", "itl:p50>+40%").exit_code == 0
    failed = _invoke("compare", *results, "--fail-on", "itl:p50>+5%", "--json")
    assert isinstance(failed.exception, CheckFailed)
    changes = {change["measure"]: change for change in json.loads(failed.stdout)["changes"]}
    assert changes["itl:p50"]["verdict"] == "worse"


def test_compare_refuses_different_workloads_by_default(
    results: tuple[str, str], tmp_path: Path
) -> None:
    other = str(store(make_result(AtConcurrency(3)), tmp_path / "other"))
    refused = _invoke("compare", results[0], other)
    assert isinstance(refused.exception, BadInput)
    assert "--allow-different" in refused.exception.next_step
    compared = _invoke("compare", results[0], other, "--allow-different")
    assert compared.exit_code == 0
    assert "load.kind" in compared.stdout


def test_compare_requires_two_results_and_not_sweeps(
    results: tuple[str, str], tmp_path: Path
) -> None:
    refused = _invoke("compare", str(tmp_path), results[1])
    assert isinstance(refused.exception, BadInput)
    assert "contains 2 results" in refused.exception.what
    assert isinstance(_invoke("compare", *results, "--fail-on", "tftt>5%").exception, BadInput)


def test_sweep_measures_every_load(server: FakeTriton, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    options = ("--concurrency", "1,2", "--repeat", "2", "--stream", "--output", str(folder))
    result = _invoke("sweep", "token-norm-dist", "-u", server.endpoint.grpc, *options, *SMALL)
    assert result.exit_code == 0
    assert "1 in flight" in result.stdout
    assert "2 in flight" in result.stdout
    assert sorted(path.name for path in folder.iterdir()) == [
        "concurrency-1",
        "concurrency-2",
        "report.html",
    ]
    page = (folder / "report.html").read_text()
    assert "Request latency vs. throughput" in page
    summary = json.loads((folder / "concurrency-2" / "summary.json").read_text())
    assert len(summary["runs"]["summaries"]) == 2


def test_points_of_a_sweep_and_their_warm_ups_share_no_prompt(server: FakeTriton) -> None:
    options = ("--concurrency", "1,2", "--request-rate", "90,100", "--repeat", "2", *SMALL)
    _invoke("sweep", "token-norm-dist", "-u", server.endpoint.grpc, *options)
    prompts = [tuple(inputs["input_ids"]) for inputs in server.received]
    assert len(prompts) == len(set(prompts)) == 4 * 2 * (4 + 1)


def test_sweep_ignores_a_repeated_model(server: FakeTriton) -> None:
    options = ("-m", "tensorrt_llm", "-m", "tensorrt_llm", "--num-requests", "3", "--json")
    sweep = ("sweep", "token-norm-dist", "-u", server.endpoint.grpc, *options)
    assert "A sweep requires several loads" in _invoke(*sweep).stderr
    points = json.loads(_invoke(*sweep, "--concurrency", "1,2").stdout)["points"]
    assert [len(point["targets"]) for point in points] == [1, 1]


@pytest.mark.parametrize(
    ("models", "num_searches"), [((), 1), (("-m", "tensorrt_llm", "-m", "other"), 2)]
)
def test_sweep_searches_once_for_the_targets_of_a_model(
    server: FakeTriton,
    monkeypatch: pytest.MonkeyPatch,
    models: tuple[str, ...],
    num_searches: int,
) -> None:
    searches: list[object] = []

    def find(url: str | None, interface: str, model: str | None, *_: object) -> BenchTarget:
        searches.append(model)
        return BenchTarget(server.endpoint.grpc, "tensorrt_llm")

    monkeypatch.setattr("trtllm_serve_cli.cli.bench.bench_job.find_bench_target", find)
    options = (*models, "--concurrency", "1,2,3", "--num-requests", "3", "--json")
    points = json.loads(_invoke("sweep", "token-norm-dist", *options).stdout)["points"]
    assert len(points) == 3 * num_searches
    assert len(searches) == num_searches


def test_sweep_as_json_has_every_point(server: FakeTriton) -> None:
    options = ("--request-rate", "50,100", "--json", *SMALL)
    result = _invoke("sweep", "token-norm-dist", "-u", server.endpoint.grpc, *options)
    points = json.loads(result.stdout)["points"]
    rates = [point["settings"]["load"]["request_rate_per_s"] for point in points]
    assert rates == [50, 100]


def test_interrupted_sweep_exits_with_130(server: FakeTriton) -> None:
    """Interrupt the second run of the first point."""
    server.sticks_at = 10
    address = server.endpoint.grpc
    options = ("--concurrency", "1,2", "--repeat", "2", "--warmup", "0", *SMALL)
    with _interrupting_at(server, 10):
        result = _invoke("sweep", "token-norm-dist", "-u", address, *options)
    assert result.exit_code == 130


GOOD, BAD = make_result(num_requests=3), make_result(num_requests=3, fails_every=1)
LOST = make_result(num_requests=3, ending="server_lost")


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([BAD, GOOD], "Every request failed"),
        ([GOOD, BAD], "Every request failed"),
        ([LOST, GOOD], "connection to the server was lost"),
        ([BAD, LOST], "connection to the server was lost"),
    ],
    ids=["first failed", "last failed", "lost before the last", "what ended it comes first"],
)
def test_one_failed_point_fails_the_sweep(results: list[BenchmarkResult], words: str) -> None:
    with pytest.raises(RequestFailed, match=words):
        raise_failure(results)


def test_sweep_with_some_failed_requests_succeeds() -> None:
    raise_failure([GOOD, make_result(num_requests=4, fails_every=2)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "A sweep requires several loads"),
        (("--concurrency", "4"), "A sweep requires several loads"),
        (("--concurrency", "4,x"), "The value '4,x' of --concurrency is not"),
        (("--concurrency", "1.5,2"), "The value '1.5,2' of --concurrency is not"),
        (("--request-rate", "1,0"), "--request-rate contains an invalid number: 0 is not"),
        (("--request-rate", "1,inf"), "--request-rate contains an invalid number: inf is not"),
    ],
)
def test_sweep_refuses_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    result = _invoke("sweep", "token-norm-dist", "-u", "127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_search_finds_a_rate_and_writes_its_probes(server: FakeTriton, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    options = ("--slo", "latency:p95<5s", "--min-rate", "40", "--max-rate", "80")
    options += ("--output", str(folder), *SMALL)
    result = _invoke("search", "token-norm-dist", "-u", server.endpoint.grpc, *options)
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


def test_search_reports_why_all_requests_failed(server: FakeTriton) -> None:
    server.fails_every = 1
    options = ("--slo", "latency:p95<5s", "--min-rate", "40", *SMALL)
    result = _invoke("search", "token-norm-dist", "-u", server.endpoint.grpc, *options)
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
    result = _invoke("search", "token-norm-dist", "-u", "127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_identity_rejects_batches_over_http(server: FakeTriton) -> None:
    result = _invoke("identity", "-i", "http", "-u", server.endpoint.http)
    assert isinstance(result.exception, BadInput)
    assert result.exception.what == "A request with -i http cannot contain 8 prompts."
    assert "--batch-size 1" in result.exception.next_step
