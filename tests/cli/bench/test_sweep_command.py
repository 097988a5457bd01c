"""Tests of the command `tllm bench sweep`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.bench.running import SMALL, interrupting_at, invoke
from tests.fakes.triton.server import FakeTriton
from tests.samples.bench_results import make_result
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult
from trtllm_serve_cli.cli.bench.show_result import raise_failure
from trtllm_serve_cli.cli.shared.target import BenchTarget
from trtllm_serve_cli.errors import RequestFailed


def test_sweep_measures_every_load(server: FakeTriton, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    options = ("--concurrency", "1,2", "--repeat", "2", "--stream", "--output", str(folder))
    result = invoke("sweep", "token-norm-dist", "-u", server.endpoint.grpc, *options, *SMALL)
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
    invoke("sweep", "token-norm-dist", "-u", server.endpoint.grpc, *options)
    prompts = [tuple(inputs["input_ids"]) for inputs in server.received]
    assert len(prompts) == len(set(prompts)) == 4 * 2 * (4 + 1)


def test_sweep_ignores_a_repeated_model(server: FakeTriton) -> None:
    options = ("-m", "tensorrt_llm", "-m", "tensorrt_llm", "--num-requests", "3", "--json")
    sweep = ("sweep", "token-norm-dist", "-u", server.endpoint.grpc, *options)
    assert "A sweep requires several loads" in invoke(*sweep).stderr
    points = json.loads(invoke(*sweep, "--concurrency", "1,2").stdout)["points"]
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
    points = json.loads(invoke("sweep", "token-norm-dist", *options).stdout)["points"]
    assert len(points) == 3 * num_searches
    assert len(searches) == num_searches


def test_sweep_as_json_has_every_point(server: FakeTriton) -> None:
    options = ("--request-rate", "50,100", "--json", *SMALL)
    result = invoke("sweep", "token-norm-dist", "-u", server.endpoint.grpc, *options)
    points = json.loads(result.stdout)["points"]
    rates = [point["settings"]["load"]["request_rate_per_s"] for point in points]
    assert rates == [50, 100]


def test_interrupted_sweep_exits_with_130(server: FakeTriton) -> None:
    """Interrupt the second run of the first point."""
    server.sticks_at = 10
    address = server.endpoint.grpc
    options = ("--concurrency", "1,2", "--repeat", "2", "--warmup", "0", *SMALL)
    with interrupting_at(server, 10):
        result = invoke("sweep", "token-norm-dist", "-u", address, *options)
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
    result = invoke("sweep", "token-norm-dist", "-u", "127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
