"""Benchmarks of a fake Triton with the commands `tllm bench WORKLOAD`."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from tests.cli.bench.running import SMALL, bench, interrupting_at, invoke
from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.errors import BadInput, CheckFailed, NoServer, RequestFailed


def test_bench_prints_upstreams_rows_and_times(server: FakeTriton) -> None:
    result = bench("-u", server.endpoint.grpc, "--stream", *SMALL)
    assert result.exit_code == 0
    for words in ("Requests/Sec", "Avg. OP tokens per request", "TTFT", "ITL", "TPOT"):
        assert words in result.stdout
    assert "4 requests to 127.0.0.1:" in result.stderr


def test_bench_json_is_alone_on_stdout(server: FakeTriton) -> None:
    result = bench("-u", server.endpoint.grpc, "--json", "--concurrency", "2", *SMALL)
    value = json.loads(result.stdout)
    assert value["settings"]["load"] == {
        "kind": "concurrency",
        "concurrency": 2,
        "ramp_s": 0.0,
    }
    assert value["summary"]["num_completed"] == 4


def test_bench_output_has_the_same_data(server: FakeTriton, tmp_path: Path) -> None:
    folder = tmp_path / "result"
    result = bench("-u", server.endpoint.grpc, "--json", "--output", str(folder), *SMALL)
    assert json.loads((folder / "summary.json").read_text()) == json.loads(result.stdout)
    assert len((folder / "requests.jsonl").read_text().splitlines()) == 4


def test_bench_reports_an_unknown_vocabulary(server: FakeTriton) -> None:
    server.parameters = {}
    result = bench("-u", server.endpoint.grpc, *SMALL)
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
        (("--check-perf-atol", "0"), "--check-perf-atol requires --check-perf-json"),
        (("--check-perf-rtol", "0.05"), "--check-perf-rtol requires --check-perf-json"),
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
    result = bench("-u", "127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_bench_refuses_an_address_without_a_server() -> None:
    result = bench("-u", "127.0.0.1:1", *SMALL)
    assert isinstance(result.exception, NoServer)


def test_bench_without_an_address_needs_a_running_server() -> None:
    result = bench(*SMALL)
    assert isinstance(result.exception, NoServer)
    assert "tllm import -m demo" in str(result.exception)


def test_bench_refuses_a_taken_folder_before_any_load(server: FakeTriton, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = bench("-u", server.endpoint.grpc, "--output", str(tmp_path), *SMALL)
    assert isinstance(result.exception, BadInput)
    assert server.received == []


def test_bench_prints_tables_even_if_every_request_failed(server: FakeTriton) -> None:
    server.fails_every = 1
    result = bench("-u", server.endpoint.grpc, *SMALL)
    assert "Failed requests" in result.stdout
    assert isinstance(result.exception, RequestFailed)
    assert "Every request failed (4 of 4)." in str(result.exception)
    assert "(4 of 4) is server: out of cheese" in str(result.exception)


def test_bench_prints_why_requests_failed(server: FakeTriton) -> None:
    server.fails_every = 2
    result = bench("-u", server.endpoint.grpc, "--warmup", "0", *SMALL)
    assert result.exit_code == 0
    assert "2 of 4 requests failed. The times and rates exclude failed requests." in result.stderr
    assert "2 failed: server: out of cheese" in result.stderr


def test_interrupted_bench_prints_what_was_measured(server: FakeTriton) -> None:
    server.sticks_at = 3
    address = server.endpoint.grpc

    with interrupting_at(server, 3):
        result = bench("-u", address, "--concurrency", "1", "--warmup", "0", *SMALL)
    assert result.exit_code == 130
    assert "Interrupted requests" in result.stdout
    assert "so the results are partial" in result.stderr


def test_bench_describes_the_load(server: FakeTriton) -> None:
    server.ttft_s = 0.05
    result = bench(
        "-u", server.endpoint.grpc, "--request-rate", "500", "--concurrency", "1", *SMALL
    )
    assert "500 requests/s, poisson, at most 1 in flight" in result.stderr
    assert "so the benchmark did not reach the requested rate" in result.stderr
    assert "Offered rate" not in result.stdout


def test_bench_evaluates_objectives(server: FakeTriton) -> None:
    slo = ("--slo", "ttft:p95<60s", "--slo", "latency:p50<1us")
    result = bench("-u", server.endpoint.grpc, "--stream", *slo, *SMALL)
    assert "Goodput (requests/s)" in result.stdout
    rows = {line.split()[0]: line.split()[-1] for line in result.stdout.splitlines() if "<" in line}
    assert rows == {"ttft:p95<60000ms": "yes", "latency:p50<0.001ms": "no"}


def test_bench_loads_several_addresses(server: FakeTriton) -> None:
    with FakeTriton() as other:
        urls = ("-u", server.endpoint.grpc, "-u", other.endpoint.grpc)
        result = bench(*urls, "--warmup", "0", *SMALL)
    assert (len(server.received), len(other.received)) == (2, 2)
    assert result.stdout.count("tensorrt_llm at 127.0.0.1:") == 2


def test_bench_repeats_and_shows_each_run(server: FakeTriton) -> None:
    result = bench("-u", server.endpoint.grpc, "--repeat", "2", "--json", *SMALL)
    runs = json.loads(result.stdout)["runs"]
    assert len(runs["summaries"]) == 2
    assert len(runs["across"]["completed_requests_per_s"]["values"]) == 2


def test_bench_fails_if_results_differ_from_the_reference(
    server: FakeTriton, tmp_path: Path
) -> None:
    reference = tmp_path / "perf.json"
    reference.write_text('{"a": {"Avg. Output tokens per request": 1000}}')
    check = ("--check-perf-json", str(reference), "--check-perf-key", "a")
    result = bench("-u", server.endpoint.grpc, *check, *SMALL)
    assert isinstance(result.exception, CheckFailed)
    assert "Avg. OP tokens per request" in result.stdout


def test_bench_writes_upstreams_csv(server: FakeTriton, tmp_path: Path) -> None:
    bench("-u", server.endpoint.grpc, "--op-stats-csv", str(tmp_path / "a.csv"), *SMALL)
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 2


def test_bench_reports_a_lost_server(server: FakeTriton) -> None:
    address = server.endpoint.grpc

    def stop_when_loaded() -> None:
        while len(server.received) < 4:
            time.sleep(0.001)
        server.stop()

    thread = threading.Thread(target=stop_when_loaded)
    thread.start()
    result = bench("-u", address, "--request-rate", "20", "--duration", "300", "--warmup", "0")
    thread.join()
    assert isinstance(result.exception, RequestFailed)
    assert "connection to the server was lost" in str(result.exception)
    assert "Failed requests" in result.stdout


def test_bench_of_a_data_set_needs_a_tokenizer(server: FakeTriton, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "hello", "output_length": 3}')
    arguments = ["dataset", "--dataset", str(file), "-u", server.endpoint.grpc]
    result = invoke(*arguments)
    assert isinstance(result.exception, BadInput)
    assert "--tokenizer DIR" in str(result.exception)


def test_tokenizer_of_a_data_set_without_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lengths.jsonl"
    file.write_text('{"input_length": 5, "output_length": 1}')
    words = ("--dataset", str(file), "-u", "127.0.0.1:1", "--tokenizer", str(tmp_path))
    result = invoke("dataset", *words)
    assert result.exit_code == 2
    assert "--tokenizer applies only to data sets with text" in " ".join(result.stderr.split())


@pytest.mark.parametrize("command", ["dataset", "end-to-end"])
def test_response_lengths_are_set_by_one_option(command: str) -> None:
    words = ("--dataset", "x", "--output-tokens", "5", "--op-tokens-per-word", "1.3")
    result = invoke(command, *words, "-u", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "cannot be used together" in " ".join(result.stderr.split())


def test_bench_replays_a_trace(server: FakeTriton, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [{"timestamp": n * 10, "input_length": 5, "output_length": n + 1} for n in range(3)]
    file.write_text("\n".join(map(json.dumps, lines)))
    arguments = ["trace", str(file), "-u", server.endpoint.grpc, "--speed", "2", "--json"]
    value = json.loads(invoke(*arguments).stdout)
    assert value["summary"]["num_output_tokens"] == 6
    assert value["settings"]["load"] == {"kind": "trace", "speed": 2.0, "concurrency": None}
    assert value["summary"]["offered_requests_per_s"] == 200


def test_trace_has_at_least_the_number_of_requests(server: FakeTriton, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1}\n' * 2)
    words = ("trace", str(file), "-u", server.endpoint.grpc, "--json", "--num-requests")
    refused = invoke(*words, "3")
    assert refused.exit_code == 2
    assert "--num-requests 3 exceeds the 2 requests in the trace." in " ".join(
        refused.stderr.split()
    )
    for number, rate in (("1", ()), ("2", ()), ("3", ("--request-rate", "1000"))):
        value = json.loads(invoke(*words, number, *rate).stdout)
        assert value["summary"]["num_requests"] == int(number)


def test_ramp_of_a_trace_requires_a_rate(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1}')
    result = invoke("trace", str(file), "-u", "127.0.0.1:1", "--concurrency", "2", "--ramp", "2")
    assert result.exit_code == 2
    assert "With a trace, --ramp requires --request-rate." in " ".join(result.stderr.split())


def test_bench_help_shows_an_example() -> None:
    result = bench("--help")
    assert "tllm bench token-norm-dist --num-requests 64" in result.stdout


def test_speed_of_a_trace_excludes_a_rate(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1}\n')
    result = invoke("trace", str(file), "-u", "127.0.0.1:1", "--speed", "2", "--request-rate", "5")
    assert result.exit_code == 2
    assert "--speed applies only to the recorded arrival times" in " ".join(result.stderr.split())


def test_output_has_a_page_and_a_trace(server: FakeTriton, tmp_path: Path) -> None:
    result = bench("-u", server.endpoint.grpc, "--stream", "--output", str(tmp_path / "a"), *SMALL)
    assert "\nReport: " in result.stderr
    assert (tmp_path / "a" / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "a" / "trace.json").read_text())["traceEvents"]


def test_identity_rejects_batches_over_http(server: FakeTriton) -> None:
    result = invoke("identity", "-i", "http", "-u", server.endpoint.http)
    assert isinstance(result.exception, BadInput)
    assert result.exception.what == "A request with -i http cannot contain 8 prompts."
    assert "--batch-size 1" in result.exception.next_step
