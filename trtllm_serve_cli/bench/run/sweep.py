"""Several benchmarks beside each other, run in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from trtllm_serve_cli.bench.run.benchmark import Benchmark, BenchmarkResult, Watch

# What watches the next run of a benchmark.
ShowProgress = Callable[[Benchmark], AbstractContextManager[Watch]]


def run_in_turns(
    points: Sequence[Benchmark], repeat: int, show_progress: ShowProgress
) -> list[BenchmarkResult]:
    """`repeat` runs of every point: the first of each, then the second of each, and so on.

    So a machine that grows warm, or has other work for a while, does not favour one of them. A run
    that does not finish ends the sweep; points without a run are left out.
    """
    for _ in range(repeat):
        for point in points:
            with show_progress(point) as watch:
                run = point.run(watch)
            if run.ending != "finished":
                return [each.result() for each in points if each.runs]
    return [each.result() for each in points]
