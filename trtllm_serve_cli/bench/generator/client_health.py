"""Check whether the client was fast enough to measure the server accurately."""

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
# docs/reference/benchmark-metrics.md documents these criteria.
_BUSY_LOOP = 0.9
_LATE_LOOP_MS = 10.0
_LATE_SENDING_MS = 1.0
_LATE_SENDING_FRACTION = 0.05
_LATE_LOOP_FRACTION = 0.1
# Minimum run duration, in seconds, for judging the client's CPU load and event loop lag. In a
# shorter run, a single short burst of work could dominate both values.
_MIN_RUN_S = 0.2


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The load on a worker process during a run.

    - `wall_s` is the duration of the run.
    - `cpu_s` is the CPU time of the process during the run.
    - `loop_cpu_s` is the CPU time of the event loop's thread during the run.
    - `loop_lags_s` contains the delay of each tick of a 10 ms timer in the event loop. It includes
      ticks that were due while the loop was blocked.
    """

    wall_s: float
    cpu_s: float
    loop_cpu_s: float
    loop_lags_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ClientReport:
    """The load on the client during a benchmark.

    - `num_workers` is the number of workers in each run, or 0 in a simulation.
    - `cpu_s` is the CPU time of all worker processes during the runs.
    - `busiest_loop` is the highest CPU utilization of any event loop's thread, from 0 to 1.
    - `loop_lag` is the distribution of the timer delays in the event loops.
    - `bottlenecks` contains the reasons why the client was too slow, or is empty.

    `busiest_loop` and `loop_lag` exclude runs shorter than `_MIN_RUN_S`.
    """

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
    """Measure the load on this process while the block runs, then append it to `loads`."""
    wall, cpu, loop_cpu = time.perf_counter(), time.process_time(), time.thread_time()
    lags: list[float] = []

    def catch_up() -> float:
        """Record the lag of each overdue tick and return the time until the next tick."""
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


def judge_client(
    summary: Summary, load: Load, runs: Sequence[Sequence[WorkerLoad]]
) -> ClientReport:
    """Check whether the client was the bottleneck and return a report.

    `runs` contains the load on each worker in each run.
    docs/reference/benchmark-metrics.md documents the criteria.
    """
    workers = [worker for run in runs for worker in run]
    judged = [worker for worker in workers if worker.wall_s >= _MIN_RUN_S]
    busiest = max((worker.loop_cpu_s / worker.wall_s for worker in judged), default=0.0)
    lag = distribute(lag for worker in judged for lag in worker.loop_lags_s)
    bottlenecks = []
    if busiest >= _BUSY_LOOP:
        bottlenecks.append(
            f"a worker process was busy for {busiest:.0%} of the run; increase --workers"
        )
    times = summary.times
    measured = [each.p99_ms for each in (times[LATENCY.key], times[ITL.key]) if each]
    allowed_lag_ms = max(_LATE_LOOP_MS, _LATE_LOOP_FRACTION * min(measured, default=0.0))
    if lag and lag.p99_ms > allowed_lag_ms:
        bottlenecks.append(
            f"the event loop that timestamps responses lagged by {lag.p99_ms:.1f} ms (p99); "
            f"the limit is {allowed_lag_ms:.1f} ms"
        )
    sending, latency = times[SCHEDULE_LAG.key], times[LATENCY.key]
    if sending and latency and not isinstance(load, AllAtOnce | AtConcurrency):
        allowed_ms = max(_LATE_SENDING_MS, _LATE_SENDING_FRACTION * latency.p50_ms)
        if sending.p99_ms > allowed_ms:
            bottlenecks.append(
                f"requests were sent {sending.p99_ms:.1f} ms late (p99); "
                f"the limit is {allowed_ms:.1f} ms"
            )
    return ClientReport(
        num_workers=max(map(len, runs)),
        cpu_s=sum(worker.cpu_s for worker in workers),
        busiest_loop=busiest,
        loop_lag=lag,
        bottlenecks=tuple(bottlenecks),
    )
