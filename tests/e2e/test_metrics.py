"""Metrics match the measurements of clients."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.alive import answers, find_process
from tests.e2e.conftest import TLLM, Tllm
from tests.e2e.core import gauge
from tests.ports import free_ports
from tests.waiting import wait_until
from trtllm_serve_cli.client.ask import generate, stream
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.errors import RequestFailed
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import Snapshot, parse_metrics

LONG = 6000
# Request types whose number is 0 in an idle engine.
RUNNING = ("active", "scheduled", "waiting")
_TTFT = "tllm_time_to_first_token_seconds"


def scrape(endpoint: Endpoint) -> Snapshot:
    return parse_metrics(fetch_metrics(endpoint.metrics), 0.0)


class CounterDelta:
    """The increase of a model's counters since this object was created."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint = endpoint
        self._labels = {"model": model}
        self._before = scrape(endpoint)

    def __call__(self, name: str, **labels: str) -> float:
        now = scrape(self._endpoint).value(name, **self._labels, **labels)
        return (now or 0.0) - (self._before.value(name, **self._labels, **labels) or 0.0)

    def outcomes(self) -> dict[str, int]:
        """Return the number of requests that have ended since, by outcome."""
        ended = ((each, self("tllm_requests", outcome=each)) for each in
                 ("stop", "length", "cancelled", "error", "rejected"))  # fmt: skip
        return {outcome: int(count) for outcome, count in ended if count}

    def buckets(self) -> dict[float, float]:
        bounds = {each.labels["le"] for each in self._before.find(f"{_TTFT}_bucket")}
        return {float(bound): self(f"{_TTFT}_bucket", le=bound) for bound in bounds}


def median_bucket(buckets: dict[float, float]) -> float:
    """Return the lower bound of the bucket that contains the median."""
    bounds = [0.0, *sorted(buckets)]
    rank = math.ceil(buckets[math.inf] / 2)
    index = next(i for i, bound in enumerate(bounds[1:], 1) if buckets[bound] >= rank)
    return bounds[index - 1]


def test_metrics_match_the_benchmark(served: Tllm, endpoint: Endpoint, tmp_path: Path) -> None:
    delta = CounterDelta(endpoint, "tensorrt_llm")
    served.done(
        "bench", "token-norm-dist", "--num-requests", "12", "--concurrency", "3", "--stream",
        "--warmup", "0", "--input-mean", "40", "--output-mean", "12", "--output", str(tmp_path),
    )  # fmt: skip
    seen = json.loads((tmp_path / "summary.json").read_text())
    lines = (tmp_path / "requests.jsonl").read_text().splitlines()
    requests: list[dict[str, Any]] = [json.loads(line) for line in lines]
    num_tokens = sum(each["num_output_tokens"] for each in requests)
    expected = {
        "tllm_generation_tokens": num_tokens,
        "nv_llm_output_token_len_sum": num_tokens,
        "tllm_prompt_tokens": sum(each["num_input_tokens"] for each in requests),
        # A busy server merges tokens into one response.
        "tllm_inter_token_latency_seconds_count": sum(
            len(each["chunk_s"]) - 1 for each in requests
        ),
        f"{_TTFT}_count": 12,
        "tllm_request_duration_seconds_count": 12,
    }
    # Each metric is sent to Triton in its own message.
    wait_until(lambda: {name: delta(name) for name in expected} == expected)
    wait_until(lambda: delta.outcomes() == {"length": 12})
    # The server measures first tokens earlier than the client, by the time of the gRPC transfer.
    assert median_bucket(delta.buckets()) <= seen["summary"]["ttft"]["p50_ms"] / 1000
    waits_s = sum(each["first_token_s"] - each["sent_s"] for each in requests)
    assert 0 < delta(f"{_TTFT}_sum") < waits_s
    answers_s = sum(each["end_s"] - each["sent_s"] for each in requests)
    assert 0 < delta("tllm_request_duration_seconds_sum") < answers_s
    wait_until(lambda: [gauge(endpoint, kind) for kind in RUNNING] == [0, 0, 0])


def test_closed_stream_counts_as_cancelled(endpoint: Endpoint) -> None:
    delta = CounterDelta(endpoint, "demo")
    pieces = stream(
        endpoint, "demo", GenerateRequest("Once upon a time", max_tokens=LONG, min_tokens=LONG)
    )
    next(pieces)
    pieces.close()
    wait_until(lambda: delta.outcomes() == {"cancelled": 1})
    wait_until(lambda: delta("tllm_generation_tokens") >= 1)
    assert delta("tllm_request_duration_seconds_count") == 0
    wait_until(lambda: gauge(endpoint, "active") == 0)


def test_invalid_requests_count_as_rejected(endpoint: Endpoint) -> None:
    delta = CounterDelta(endpoint, "demo")
    for request in (GenerateRequest("hi", max_tokens=0), GenerateRequest("hi", max_tokens=10**6)):
        with pytest.raises(RequestFailed):
            generate(endpoint, "demo", request, "grpc")
    wait_until(lambda: delta.outcomes() == {"rejected": 2})
    assert delta("tllm_generation_tokens") == delta(f"{_TTFT}_count") == 0


def test_requests_of_a_dead_worker_count_as_errors(served: Tllm, endpoint: Endpoint) -> None:
    delta, engine = CounterDelta(endpoint, "demo"), CounterDelta(endpoint, "tensorrt_llm")
    pieces = stream(
        endpoint, "demo", GenerateRequest("Once upon a time", max_tokens=LONG, min_tokens=LONG)
    )
    next(pieces)
    find_process(served, "tllm_runtime.worker").send_signal(signal.SIGKILL)
    with pytest.raises(RequestFailed):
        list(pieces)
    wait_until(lambda: delta.outcomes() == {"error": 1})
    wait_until(lambda: answers(endpoint), 180)
    wait_until(lambda: engine("tllm_engine_worker_restarts") == 1)
    # Wait until the probes of `answers` are counted, so that the next test does not count them.
    wait_until(lambda: "length" in delta.outcomes())


def test_response_that_ends_at_a_stop_word_counts_as_stop(endpoint: Endpoint) -> None:
    delta = CounterDelta(endpoint, "demo")
    generate(endpoint, "demo", GenerateRequest("What is ML?", max_tokens=8), "grpc")
    request = GenerateRequest("What is ML?", max_tokens=8, stop_words=tuple("aeiou"))
    generate(endpoint, "demo", request, "grpc")
    wait_until(lambda: delta("tllm_requests", outcome="stop") == 1)


def test_watch_prints_rates_from_the_second_sample(served: Tllm, endpoint: Endpoint) -> None:
    """A program reads the lines of `--watch --json`."""
    command = (TLLM, "metrics", "--watch", "--json", "--interval", "0.3")
    with subprocess.Popen(
        command, env=served.environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    names = [each["model"] for each in first["models"]]
    assert {"demo", "ensemble", "tensorrt_llm"} <= set(names)
    assert first["models"][0]["requests_per_s"] is None
    assert second["models"][0]["requests_per_s"] is not None
    assert process.returncode == 130


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[Callable[[str], Any]]:
    """Run Prometheus with the configuration in `folder`, and yield a function for its API."""
    command = (
        "prometheus", f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
    )  # fmt: skip

    def fetch(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
                return json.load(response)["data"]
        except (urllib.error.URLError, OSError, ValueError):
            return None

    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: fetch("/api/v1/status/config"), 60)
        yield fetch
    finally:
        process.terminate()
        process.wait(30)


def query(fetch: Callable[[str], Any], expression: str) -> dict[str, float]:
    """Return the current value for each model."""
    quoted = urllib.parse.quote(expression)
    found = (fetch(f"/api/v1/query?query={quoted}") or {}).get("result", [])
    return {each["metric"].get("model", ""): float(each["value"][1]) for each in found}


@pytest.fixture
def busy(light_home: Callable[[], Tllm]) -> Tllm:
    """Serve a simulated engine with two slots, which completes 6 requests of 64 tokens per second.

    A real engine with a queue would need all processors of the machine.
    """
    tllm = light_home()
    tllm.done("set", "demo", "max_num_seqs=2", "triton_max_batch_size=2")
    started = tllm.start()
    assert started.returncode == 0, started.stdout + started.stderr
    return tllm


@pytest.mark.skipif(
    not shutil.which("prometheus"), reason="needs Prometheus: apt-get install prometheus"
)
def test_prometheus_scrapes_the_server_and_fires_the_queue_alert(
    busy: Tllm, tmp_path: Path
) -> None:
    """Requests arrive faster than they are served, so the queue grows."""
    busy.done("metrics", "export", "prometheus", "-o", str(tmp_path), "--for", "2s")
    busy.done("metrics", "export", "grafana", "-o", str(tmp_path))
    config = tmp_path / "prometheus.yml"
    config.write_text(config.read_text().replace("15s", "1s"))
    load = subprocess.Popen(
        ("nice", TLLM, "bench", "token-norm-dist", "--num-requests", "3000", "--request-rate", "30",
         "--input-mean", "64", "--output-mean", "64", "--warmup", "0"),
        env=busy.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with prometheus(tmp_path, *free_ports(1)) as fetch:
            wait_until(lambda: "TllmQueueGrowing" in firing(fetch), 120)
            assert "TllmServerDown" not in firing(fetch)
            wait_until(
                lambda: query(fetch, "tllm:generation_tokens:rate5m").get("tensorrt_llm"), 60
            )
            # NaN until a request has received its first token between two scrapes.
            p50 = "tllm:ttft_seconds:p50_rate5m"
            wait_until(lambda: query(fetch, p50).get("tensorrt_llm", 0) > 0, 120)
            assert query(fetch, p50)["tensorrt_llm"] < 200
            check_dashboard(fetch, tmp_path / "tllm-dashboard.json")
    finally:
        load.send_signal(signal.SIGINT)
        load.wait(60)
    endpoint = busy.endpoint()
    wait_until(lambda: gauge(endpoint, "active") == 0, 60)


def firing(fetch: Callable[[str], Any]) -> set[str]:
    alerts = (fetch("/api/v1/alerts") or {}).get("alerts", [])
    return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}


def check_dashboard(fetch: Callable[[str], Any], path: Path) -> None:
    """Check that Prometheus accepts every query, and returns data for what the server has."""
    without_data = set()
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m")
            for name in ("$instance", "$model"):
                expression = expression.replace(name, ".*")
            data = fetch(f"/api/v1/query?query={urllib.parse.quote(expression)}")
            assert data is not None, expression
            if not data["result"]:
                without_data.add(panel["title"])
    assert without_data <= {
        "GPU and CPU utilization", "Memory", "GPU power", "Prefix cache hit rate",
            "KV cache transfers",
    }  # fmt: skip
