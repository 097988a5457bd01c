"""Run several benchmarks one after another and repeat the sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from trtllm_serve_cli.bench.run.benchmark import Benchmark, BenchmarkResult, Watch

# A function that returns a context manager for showing the progress of a benchmark's next run.
ShowProgress = Callable[[Benchmark], AbstractContextManager[Watch]]


def run_in_turns(
    points: Sequence[Benchmark], repeat: int, show_progress: ShowProgress
) -> list[BenchmarkResult]:
    """Run every point once, then repeat the sequence until every point has `repeat` runs.

    If the machine heats up or is temporarily busy, this order spreads the effect across all points.
    A run that does not finish ends the sweep. The results omit points without a run.
    """
    for _ in range(repeat):
        for point in points:
            with show_progress(point) as watch:
                run = point.run(watch)
            if run.ending != "finished":
                return [each.result() for each in points if each.runs]
    return [each.result() for each in points]
