from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.samples.bench_results import make_result
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency
from trtllm_serve_cli.bench.run.benchmark import Benchmark, Ending, Run, Watch
from trtllm_serve_cli.bench.run.sweep import run_in_turns


@contextmanager
def _quiet(benchmark: Benchmark) -> Iterator[Watch]:
    yield lambda progress: None


def _points(log: list[tuple[int, int]], lost: tuple[int, int] | None = None) -> list[Benchmark]:
    def point(concurrency: int) -> Benchmark:
        made = make_result(AtConcurrency(concurrency), num_requests=4)

        def measure(number: int, watch: Watch) -> tuple[Run, int]:
            log.append((concurrency, number))
            ending: Ending = "server_lost" if (concurrency, number) == lost else "finished"
            records = tuple(replace(record, run=number) for record in made.runs[0].records)
            return replace(made.runs[0], records=records, ending=ending), 0

        return Benchmark(made.settings, made.models, measure)

    return [point(concurrency) for concurrency in (1, 2, 4)]


def test_points_take_turns() -> None:
    log: list[tuple[int, int]] = []
    results = run_in_turns(_points(log), 2, _quiet)
    assert log == [(1, 0), (2, 0), (4, 0), (1, 1), (2, 1), (4, 1)]
    assert [len(result.runs) for result in results] == [2, 2, 2]
    assert [result.settings.repeat for result in results] == [2, 2, 2]
    assert results[0].summary.num_requests == 8


def test_sweep_ends_with_a_lost_server_and_keeps_its_results() -> None:
    log: list[tuple[int, int]] = []
    results = run_in_turns(_points(log, lost=(2, 0)), 2, _quiet)
    assert log == [(1, 0), (2, 0)]
    assert [result.ending for result in results] == ["finished", "server_lost"]
