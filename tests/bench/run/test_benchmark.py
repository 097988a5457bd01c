from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fakes.triton.answers import Outputs, Request, exact_length
from tests.fakes.triton.server import FakeTriton
from tests.samples.bench_results import make_result
from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, AtRate, Load
from trtllm_serve_cli.bench.model.served_model import Target
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult, run_benchmark
from trtllm_serve_cli.bench.workloads.dataset import Dataset
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.bench.workloads.spec import RequestSpec

Serve = Callable[[FakeTriton], str]
WORKLOAD = TokenNormDist(8, 2, 5, 1)


def _run(address: str, load: Load | None = None, **settings: Any) -> BenchmarkResult:
    settings = {"num_requests": 6, "num_warmup_requests": 0} | settings
    settings = {"workload": WORKLOAD, "load": load or AllAtOnce()} | settings
    return run_benchmark(BenchmarkSettings(**settings), [Target(address)])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("decoupled", [False, True], ids=["unary", "decoupled"])
def test_every_response_has_the_requested_length(
    serve: Serve, decoupled: bool, stream: bool
) -> None:
    server = FakeTriton(is_decoupled=decoupled)
    result = _run(serve(server), stream=stream)
    requested = [inputs["request_output_len"] for inputs in server.received]
    assert sorted(record.num_output_tokens for record in result.records) == sorted(requested)
    assert result.summary.num_completed == 6


@pytest.mark.parametrize(
    "load",
    [AllAtOnce(), AtRate(500, "constant"), AtRate(500), AtRate(500, "gamma", 0.5)],
    ids=["in one burst", "constant", "poisson", "gamma"],
)
def test_open_loads_send_everything(serve: Serve, load: Load) -> None:
    assert _run(serve(FakeTriton()), load).summary.num_completed == 6


def test_closed_load_never_exceeds_its_concurrency(serve: Serve) -> None:
    records = _run(serve(FakeTriton(ttft_s=0.005)), AtConcurrency(2)).records
    for record in records:
        together = [r for r in records if r.sent_s <= record.sent_s < r.end_s]
        assert len(together) <= 2


def test_streamed_times_follow_the_server(serve: Serve) -> None:
    server = FakeTriton(ttft_s=0.05, itl_s=0.01)
    result = _run(serve(server), stream=True, num_requests=3)
    summary = result.summary
    ttft = summary.times["ttft"]
    assert ttft and summary.times["itl"] and summary.times["tpot"]
    assert ttft.min_ms >= 50
    # The test checks the total, because a late response makes the next gap shorter.
    for record in result.records:
        assert record.end_s - record.sent_s >= 0.05 + 0.01 * (record.num_output_tokens - 1)


def test_one_token_per_response_when_streamed(serve: Serve) -> None:
    records = _run(serve(FakeTriton()), stream=True).records
    assert {count for record in records for count in record.chunk_tokens} == {1}


def test_same_seed_sends_the_same_prompts_whatever_the_warmup(serve: Serve) -> None:
    server = FakeTriton()
    address = serve(server)
    _run(address, AtConcurrency(1), seed=0)
    _run(address, AtConcurrency(1), seed=0, num_warmup_requests=2)
    prompts = [inputs["input_ids"] for inputs in server.received]
    assert prompts[:6] == prompts[8:]


def test_warmup_requests_are_not_measured(serve: Serve) -> None:
    server = FakeTriton()
    result = _run(serve(server), num_warmup_requests=3)
    assert (len(server.received), result.summary.num_requests) == (9, 6)


def test_warmup_keeps_the_concurrency(serve: Serve) -> None:
    in_flight: list[int] = []
    together: list[int] = []

    def answer(request: Request) -> Iterator[Outputs]:
        in_flight.append(1)
        together.append(len(in_flight))
        yield from exact_length(request)
        in_flight.pop()

    _run(serve(FakeTriton(answer, ttft_s=0.02)), AtConcurrency(2), num_warmup_requests=6)
    assert max(together) <= 2


def test_ids_use_the_fallback_vocabulary_if_none_is_configured(serve: Serve) -> None:
    server = FakeTriton(parameters={})
    result = _run(serve(server))
    assert result.vocab_size == 1000
    assert max(max(inputs["input_ids"]) for inputs in server.received) < 1000


def test_errors_of_the_ramp_are_excluded() -> None:
    made = make_result(num_requests=10, fails_every=2)
    (run,) = made.runs
    records = tuple(replace(each, is_ramp=each.index < 4) for each in run.records)
    result = replace(made, runs=(replace(run, records=records),))
    assert result.error_messages == [("server: out of <memory>", 3)]


@pytest.mark.parametrize(
    ("decoupled", "message"),
    [(True, "server: out of cheese"), (False, "internal: out of cheese")],
    ids=["decoupled", "unary"],
)
def test_failures_are_grouped_and_excluded_from_times(
    serve: Serve, decoupled: bool, message: str
) -> None:
    result = _run(serve(FakeTriton(is_decoupled=decoupled, fails_every=3)))
    assert result.error_messages == [(message, 2)]
    latency = result.summary.times["request_latency"]
    assert latency is not None
    assert latency.num_samples == 4


def test_requests_fail_after_the_server_stops(serve: Serve) -> None:
    server = FakeTriton(sticks_at=2)
    address = serve(server)
    killer = threading.Thread(target=lambda: (_wait_for_requests(server, 2), server.stop()))
    killer.start()
    result = _run(address, AtConcurrency(1))
    killer.join()
    assert (result.summary.num_completed, result.summary.num_failed) == (1, 5)
    assert not result.is_partial


def test_interrupt_keeps_measured_requests(serve: Serve) -> None:
    server = FakeTriton(sticks_at=4)
    address = serve(server)

    def interrupt_when_stuck() -> None:
        _wait_for_requests(server, 4)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt_when_stuck)
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    result = _run(address, AtConcurrency(1), num_requests=6)
    thread.join()
    assert result.is_partial
    assert (result.summary.num_completed, result.summary.num_interrupted) == (3, 1)
    assert signal.getsignal(signal.SIGINT) is before


def _wait_for_requests(server: FakeTriton, num_requests: int) -> None:
    while len(server.received) < num_requests:
        time.sleep(0.001)


def test_several_targets_are_loaded_in_turns_and_summarized_separately(serve: Serve) -> None:
    servers = [FakeTriton(), FakeTriton(fails_every=1)]
    targets = [Target(serve(server)) for server in servers]
    settings = BenchmarkSettings(WORKLOAD, AllAtOnce(), 7, num_warmup_requests=0)
    result = run_benchmark(settings, targets)
    assert [len(server.received) for server in servers] == [4, 3]
    assert result.summary_of(target=0).num_completed == 4
    assert result.summary_of(target=1).num_failed == 3


def test_repeats_send_different_but_reproducible_requests(serve: Serve) -> None:
    server = FakeTriton()
    address = serve(server)
    results = [
        _run(address, AtConcurrency(1), num_requests=3, repeat=2),
        _run(address, AtConcurrency(1), num_requests=3, repeat=2),
    ]
    prompts = [inputs["input_ids"] for inputs in server.received]
    assert prompts[:6] == prompts[6:]
    assert prompts[:3] != prompts[3:6]
    assert [record.run for record in results[0].records] == [0, 0, 0, 1, 1, 1]
    assert results[0].summary.num_requests == 6


@pytest.mark.parametrize("amount", [{"num_requests": 3}, {"duration_s": 0.2}], ids=str)
def test_repeats_continue_in_a_data_set(serve: Serve, amount: dict[str, Any]) -> None:
    server = FakeTriton(ttft_s=0.01)
    prompts = [np.array([entry], np.int32) for entry in range(500)]
    workload = Dataset("d", tuple(RequestSpec(prompt, 1) for prompt in prompts), (1,) * 500)
    _run(serve(server), AtConcurrency(1), workload=workload, repeat=2, **amount)
    sent = [inputs["input_ids"] for inputs in server.received]
    assert sent == [[entry] for entry in range(len(sent))]
    assert len(sent) >= 6


def test_workers_share_load_and_clock(serve: Serve) -> None:
    server = FakeTriton()
    result = _run(serve(server), AtRate(200, "constant"), num_requests=40, num_workers=2)
    assert sorted(record.index for record in result.records) == list(range(40))
    assert result.client.num_workers == 2
    expected = [index / 200 for index in range(40)]
    assert [record.due_s for record in result.records] == pytest.approx(expected)
    assert all(record.sent_s >= record.due_s for record in result.records)


def test_workers_send_the_same_requests_as_one_process(serve: Serve) -> None:
    server = FakeTriton()
    address = serve(server)
    for num_workers in (1, 2):
        _run(address, AtConcurrency(2), num_requests=10, num_workers=num_workers)
    prompts = [inputs["input_ids"] for inputs in server.received]
    assert sorted(prompts[:10]) == sorted(prompts[10:])


def test_interrupted_workers_keep_measured_requests(serve: Serve) -> None:
    server = FakeTriton(sticks_at=4)
    address = serve(server)

    def interrupt_when_stuck() -> None:
        _wait_for_requests(server, 4)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt_when_stuck)
    thread.start()
    result = _run(address, AtConcurrency(2), num_requests=20, num_workers=2)
    thread.join()
    assert result.ending == "interrupted"
    assert result.summary.num_interrupted >= 1
    assert result.summary.num_completed >= 1


@pytest.mark.parametrize("load", [AtConcurrency(2), AtRate(100)], ids=["closed loop", "open loop"])
def test_a_duration_ends_the_run(serve: Serve, load: Load) -> None:
    result = _run(serve(FakeTriton(ttft_s=0.01)), load, duration_s=2.0)
    assert result.summary.num_completed >= 5
    assert max(record.due_s for record in result.records) < 3.0


def test_slow_request_times_out(serve: Serve) -> None:
    result = _run(serve(FakeTriton(sticks_at=1)), num_requests=2, timeout_s=0.1)
    assert (result.summary.num_timed_out, result.summary.num_completed) == (2, 0)


def test_p99_at_a_fixed_rate_includes_a_server_freeze(serve: Serve) -> None:
    """A closed loop hides the freeze: only requests in flight are affected."""
    freeze_s, num_requests = 1.0, 200
    server = FakeTriton()
    address = serve(server)

    def freeze_at(request: int) -> threading.Thread:
        server.sticks_at = len(server.received) + request

        def unfreeze() -> None:
            _wait_for_requests(server, server.sticks_at)
            time.sleep(freeze_s)
            server.hold.set()

        thread = threading.Thread(target=unfreeze)
        thread.start()
        return thread

    thread = freeze_at(num_requests // 2)
    at_rate = _run(address, AtRate(100, "constant"), num_requests=num_requests).summary
    thread.join()
    thread = freeze_at(num_requests // 2)
    closed = _run(address, AtConcurrency(1), num_requests=num_requests).summary
    thread.join()
    latency_at_rate, closed_latency = (each.times["request_latency"] for each in (at_rate, closed))
    assert latency_at_rate and closed_latency
    assert latency_at_rate.p99_ms > 900 * freeze_s
    # About 100 requests, half of the run, were due during the freeze.
    assert latency_at_rate.p75_ms > 300 * freeze_s
    assert closed_latency.p95_ms < 500 * freeze_s


def test_lost_server_ends_a_run_at_a_rate_early(serve: Serve) -> None:
    server = FakeTriton()
    address = serve(server)
    killer = threading.Thread(target=lambda: (_wait_for_requests(server, 20), server.stop()))
    killer.start()
    result = _run(address, AtRate(20, "constant"), num_requests=5_000)
    killer.join()
    assert result.ending == "server_lost"
    assert result.is_partial
    assert result.summary.num_completed >= 4
    assert set(result.summary.failures) <= {"connection", "unavailable", "cancelled"}
