from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from trtllm_serve_cli.bench.generator.client_health import WorkerLoad, judge_client, monitor_client
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, AtRate, Load
from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.stats.statistics import summarize

CALM = WorkerLoad(10.0, 2.0, 1.0, (0.0001,) * 1000)


def _judge(load: Load, worker: WorkerLoad = CALM, lag_s: float = 0.0) -> tuple[str, ...]:
    records = [
        RequestRecord(index, index * 0.1, index * 0.1 + lag_s, index * 0.1 + 1.0, 1, (0.0,), (1,))
        for index in range(100)
    ]
    summary = summarize(records, load, streamed=False)
    return judge_client(summary, load, [[CALM, worker]]).bottlenecks


def test_fast_client_is_not_a_bottleneck() -> None:
    assert _judge(AtRate(10)) == ()


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        (replace(CALM, loop_cpu_s=9.5), "busy for 95% of the run"),
        (replace(CALM, loop_lags_s=(0.12,) * 1000), "lagged by 120.0 ms"),
    ],
    ids=["busy", "late"],
)
def test_the_worst_worker_counts(worker: WorkerLoad, words: str) -> None:
    (bottleneck,) = _judge(AtRate(10), worker)
    assert words in bottleneck


def test_late_requests_are_a_bottleneck_relative_to_the_latency() -> None:
    assert _judge(AtRate(10), lag_s=0.04) == ()
    (bottleneck,) = _judge(AtRate(10), lag_s=0.06)
    assert "sent 60.0 ms late (p99); the limit is 50.0 ms" in bottleneck


def test_loop_lag_is_judged_relative_to_the_measured_times() -> None:
    assert _judge(AtRate(10), replace(CALM, loop_lags_s=(0.09,) * 1000)) == ()


@pytest.mark.parametrize("load", [AllAtOnce(), AtConcurrency(4)])
def test_lateness_is_ignored_without_a_schedule(load: Load) -> None:
    assert _judge(load, lag_s=0.5) == ()


def test_very_short_runs_are_not_judged() -> None:
    assert _judge(AllAtOnce(), WorkerLoad(0.01, 0.01, 0.01, (0.5,) * 3)) == ()


def test_workers_count_once_in_repeated_runs() -> None:
    summary = summarize((), AllAtOnce(), streamed=False)
    report = judge_client(summary, AllAtOnce(), [[CALM, CALM]] * 3)
    assert (report.num_workers, report.cpu_s) == (2, 12.0)


def test_blocked_event_loop_is_measured() -> None:
    loads: list[WorkerLoad] = []

    async def block() -> None:
        with monitor_client(loads):
            await asyncio.sleep(0.02)
            for _ in range(3_000_000):
                pass
            await asyncio.sleep(0.02)

    asyncio.run(block())
    (load,) = loads
    assert max(load.loop_lags_s) > 0.01
    assert 0 < load.loop_cpu_s <= load.cpu_s + 0.01
    assert load.wall_s > 0.04


def test_blocked_event_loop_is_late_for_each_missed_tick() -> None:
    loads: list[WorkerLoad] = []

    async def stand_still() -> None:
        with monitor_client(loads):
            await asyncio.sleep(0)
            time.sleep(0.2)

    asyncio.run(stand_still())
    missed = loads[0].loop_lags_s[-19:]
    assert missed[0] >= 0.18
    assert [lag - later for lag, later in pairwise(missed)] == pytest.approx([0.01] * 18)
