"""Benchmark results of a small simulated queue; the same seed gives the same records."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trtllm_serve_cli.bench.generator.client_health import WorkerLoad, judge_client
from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency, AtRate, Load, plan_due_times
from trtllm_serve_cli.bench.model.records import RequestError, RequestRecord
from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.model.slo import Objective
from trtllm_serve_cli.bench.report.result_json import write_result
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult, Ending, Run
from trtllm_serve_cli.bench.run.sampling import ServerSample
from trtllm_serve_cli.bench.stats.statistics import summarize
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.bench.workloads.spec import Workload

NUM_SLOTS = 8


def make_run(
    load: Load,
    *,
    run: int = 0,
    num_requests: int = 120,
    gap_s: float = 0.02,
    num_tokens: int = 12,
    fails_every: int | None = None,
) -> tuple[RequestRecord, ...]:
    """Return the records of a server with eight slots, whose first token takes three gaps."""
    rng = np.random.default_rng(run)
    is_closed = isinstance(load, AtConcurrency)
    due_s = [0.0] * num_requests if is_closed else plan_due_times(load, num_requests, rng).tolist()
    slots = [0.0] * (min(load.concurrency, NUM_SLOTS) if is_closed else NUM_SLOTS)
    records = []
    for index, due in enumerate(due_s):
        free = heapq.heappop(slots)
        due = free if is_closed else due
        begin = max(free, due)
        gaps = rng.gamma(16, gap_s / 16, num_tokens)
        gaps[0] *= 3
        chunks = tuple((begin + np.cumsum(gaps)).tolist())
        failed = fails_every is not None and index % fails_every == fails_every - 1
        error = RequestError("server", "out of <memory>") if failed else None
        records.append(
            RequestRecord(
                index,
                due,
                due,
                chunks[-1],
                100 + index % 7,
                chunks,
                (1,) * num_tokens,
                error,
                queue_s=begin - due,
                run=run,
            )
        )
        heapq.heappush(slots, chunks[-1])
    return tuple(records)


def make_result(
    load: Load | None = None,
    *,
    runs: int = 1,
    model: str = "tensorrt_llm",
    stream: bool = True,
    objectives: Sequence[Objective] = (),
    workload: Workload | None = None,
    ending: Ending = "finished",
    loop_busy: float = 0.2,
    num_requests: int = 120,
    gap_s: float = 0.02,
    fails_every: int | None = None,
    machine: str = "x86_64",
) -> BenchmarkResult:
    """Return a complete benchmark, with server samples every 0.5 s."""
    load = load or AtRate(20)
    each = [
        make_run(load, run=run, num_requests=num_requests, gap_s=gap_s, fails_every=fails_every)
        for run in range(runs)
    ]
    records = [record for one in each for record in one]
    summary = summarize(records, load, streamed=stream, objectives=objectives)
    worker = WorkerLoad(10.0, 3.0, 10 * loop_busy, (0.0002,) * 100)
    return BenchmarkResult(
        settings=BenchmarkSettings(
            workload or TokenNormDist(),
            load,
            num_requests=num_requests,
            stream=stream,
            repeat=runs,
            objectives=tuple(objectives),
        ),
        models=(ServedModel("127.0.0.1:8001", model, "1", "2.51.0", True, 8, 49152),),
        runs=tuple(
            Run("2026-11-21T09:00:00+00:00", 100.0, ending, one, (worker,), _samples(one))
            for one in each
        ),
        summary=summary,
        client=judge_client(summary, load, [[worker]] * runs),
        versions={"tllm": "0.1.0", "python": "3.11.9"},
        machine={"platform": "Linux", "architecture": machine, "num_cpus": 2},
    )


def store(result: BenchmarkResult, folder: Path) -> Path:
    """Write the result as `tllm bench --output FOLDER` does."""
    write_result(result, folder)
    return folder


def _samples(records: Sequence[RequestRecord]) -> tuple[ServerSample, ...]:
    end_s = max(record.end_s for record in records)
    return tuple(_sample(at_s, records) for at_s in np.arange(0.0, end_s, 0.5).tolist())


def _sample(at_s: float, records: Sequence[RequestRecord]) -> ServerSample:
    inside = sum(record.sent_s <= at_s < record.end_s for record in records)
    running = min(inside, NUM_SLOTS)
    engine = {
        "model": "tensorrt_llm",
        "num_active": inside,
        "num_scheduled": running,
        "num_waiting": inside - running,
        "kv_blocks_used": running * 10,
        "kv_blocks_max": 100,
    }
    state = {"models": [], "engines": [engine], "host": {"gpus": []}}
    return ServerSample(0, 100.0 + at_s, state)
