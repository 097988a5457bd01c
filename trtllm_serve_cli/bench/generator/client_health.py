"""The client watches itself: a figure is the server's only as far as the client kept up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, Load
from trtllm_serve_cli.bench.model.metrics import ITL, LATENCY, SCHEDULE_LAG
from trtllm_serve_cli.bench.stats.statistics import Distribution, Summary, distribute

_TICK_S = 0.01
# The criterion that docs/metrics.md states.
_BUSY_LOOP = 0.9
_LATE_LOOP_MS = 10.0
_LATE_SENDING_MS = 1.0
_LATE_SENDING_FRACTION = 0.05
_LATE_LOOP_FRACTION = 0.1
# What is shorter says nothing about a client.
_MIN_RUN_S = 0.2


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker process during the run: its CPU time, and that of the thread with the event loop.

    `loop_lags_s` are how late a timer of the loop was, every 10 ms; a loop that stood still was
    late for each of the ticks that it missed.
    """

    wall_s: float
    cpu_s: float
    loop_cpu_s: float
    loop_lags_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ClientReport:
    """What the client was busy with; `bottlenecks` are sentences, none if it kept up."""

    num_workers: int
    cpu_s: float
    busiest_loop: float
    loop_lag: Distribution | None
    bottlenecks: tuple[str, ...]

    @property
    def was_bottleneck(self) -> bool:
        return bool(self.bottlenecks)


@contextlib.contextmanager
def monitor_client(loads: list[WorkerLoad]) -> Iterator[None]:
    """Within a running event loop: adds to `loads` what this process did meanwhile."""
    wall, cpu, loop_cpu = time.perf_counter(), time.process_time(), time.thread_time()
    lags: list[float] = []

    def catch_up() -> float:
        """How long until the next tick, after a lag for each that is past."""
        now = time.perf_counter()
        while (late := now - wall - (len(lags) + 1) * _TICK_S) >= 0:
            lags.append(late)
        return -late

    async def tick() -> None:
        while True:
            await asyncio.sleep(catch_up())

    task = asyncio.ensure_future(tick())
    try:
        yield
    finally:
        task.cancel()
        catch_up()
        loads.append(
            WorkerLoad(
                time.perf_counter() - wall,
                time.process_time() - cpu,
                time.thread_time() - loop_cpu,
                tuple(lags),
            )
        )


def judge_client(summary: Summary, load: Load, workers: Sequence[WorkerLoad]) -> ClientReport:
    """Whether the client was the bottleneck, by the criterion of docs/metrics.md."""
    judged = [worker for worker in workers if worker.wall_s >= _MIN_RUN_S]
    busiest = max((worker.loop_cpu_s / worker.wall_s for worker in judged), default=0.0)
    lag = distribute(lag for worker in judged for lag in worker.loop_lags_s)
    bottlenecks = []
    if busiest >= _BUSY_LOOP:
        bottlenecks.append(
            f"a process of it was busy for {busiest:.0%} of the run: give it more (--workers)"
        )
    times = summary.times
    measured = [each.p99_ms for each in (times[LATENCY.key], times[ITL.key]) if each]
    allowed_lag_ms = max(_LATE_LOOP_MS, _LATE_LOOP_FRACTION * min(measured, default=0.0))
    if lag and lag.p99_ms > allowed_lag_ms:
        bottlenecks.append(
            f"its event loop was late by {lag.p99_ms:.1f} ms (p99), and answers were stamped that "
            f"late, where {allowed_lag_ms:.1f} ms would do"
        )
    sending, latency = times[SCHEDULE_LAG.key], times[LATENCY.key]
    if sending and latency and not isinstance(load, AllAtOnce | AtConcurrency):
        allowed_ms = max(_LATE_SENDING_MS, _LATE_SENDING_FRACTION * latency.p50_ms)
        if sending.p99_ms > allowed_ms:
            bottlenecks.append(
                f"requests were sent late by {sending.p99_ms:.1f} ms (p99), "
                f"where {allowed_ms:.1f} ms would do"
            )
    return ClientReport(
        num_workers=len(workers),
        cpu_s=sum(worker.cpu_s for worker in workers),
        busiest_loop=busiest,
        loop_lag=lag,
        bottlenecks=tuple(bottlenecks),
    )
