"""Run several benchmarks in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from trtllm_serve_cli.bench.run.benchmark import Benchmark, BenchmarkResult, Watch

# A context that displays the progress of a benchmark's next run.
ShowProgress = Callable[[Benchmark], AbstractContextManager[Watch]]


def run_in_turns(
    points: Sequence[Benchmark], repeat: int, show_progress: ShowProgress
) -> list[BenchmarkResult]:
    """Run every point `repeat` times: the first run of each, then the second of each, and so on.

    A machine that heats up or is temporarily busy thus affects all points. A run that does not
    finish ends the sweep; points without a run are omitted.
    """
    for _ in range(repeat):
        for point in points:
            with show_progress(point) as watch:
                run = point.run(watch)
            if run.ending != "finished":
                return [each.result() for each in points if each.runs]
    return [each.result() for each in points]
