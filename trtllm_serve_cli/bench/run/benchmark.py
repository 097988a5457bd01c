"""Run a benchmark with the given settings and return its result."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Literal

from trtllm_serve_cli import __version__
from trtllm_serve_cli.bench.generator.bench_worker import Counts, WorkerResult
from trtllm_serve_cli.bench.generator.client_health import ClientReport, WorkerLoad, judge_client
from trtllm_serve_cli.bench.generator.interruption import Interruption, interruptible
from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.generator.worker_plan import Share, find_vocab_size, plan_workers
from trtllm_serve_cli.bench.generator.worker_pool import run_workers
from trtllm_serve_cli.bench.model.records import RequestRecord, spread_tokens
from trtllm_serve_cli.bench.model.served_model import (
    OpenAITarget,
    ServedModel,
    Target,
    fetch_model,
)
from trtllm_serve_cli.bench.run.sampling import ServerSample, sampling
from trtllm_serve_cli.bench.stats.statistics import Summary, summarize
from trtllm_serve_cli.bench.transport.openai_probe import probe_model
from trtllm_serve_cli.bench.workloads.dataset import Tokenizer
from trtllm_serve_cli.processes import count_cores

Ending = Literal["finished", "interrupted", "server_lost"]
TokenCounts = Literal["server", "re-tokenised", "responses"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run.

    Each turn of a conversation counts as a request. Warm-up requests do not count. `num_requests`
    is the planned number of requests, or `None` if the run is limited only by its duration.
    """

    run: int
    num_requests: int | None
    num_sent: int
    num_ended: int
    num_failed: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a benchmark.

    `started_at` is the UTC time in ISO 8601 format before the run and its warm-up. `start` is the
    time when the load started, on the machine's monotonic clock, or 0 in a simulation.
    """

    started_at: str
    start: float
    ending: Ending
    records: tuple[RequestRecord, ...]
    workers: tuple[WorkerLoad, ...]
    samples: tuple[ServerSample, ...] = ()

    @property
    def num_drawn(self) -> int:
        """The number of workload requests up to the last one that was sent.

        A conversation counts as one request.
        """
        return max((record.index for record in self.records), default=-1) + 1


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """The records, metrics and environment of a benchmark.

    `summary` covers all runs. `summary_of` returns the summary for one run or target.
    `token_counts` is the source of the output token counts: the server, the client's tokenizer, or
    one token per response. `versions` and `machine` describe the client.
    """

    settings: BenchmarkSettings
    models: tuple[ServedModel, ...]
    runs: tuple[Run, ...]
    summary: Summary
    client: ClientReport
    token_counts: TokenCounts = "server"
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str | int] = field(default_factory=dict)

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        return tuple(record for run in self.runs for record in run.records)

    @property
    def ending(self) -> Ending:
        return self.runs[-1].ending

    @property
    def is_partial(self) -> bool:
        return self.ending != "finished"

    @property
    def vocab_size(self) -> int:
        return find_vocab_size(self.models)

    @property
    def error_messages(self) -> list[tuple[str, int]]:
        """The distinct errors as `kind: message` and their counts, most frequent first.

        Like the metrics, they exclude ramp requests.
        """
        counted = (record for record in self.records if not record.is_ramp)
        failed = (r.error for r in counted if r.error and not r.is_interrupted)
        return Counter(f"{error.kind}: {error.message}" for error in failed).most_common()

    def summary_of(self, *, run: int | None = None, target: int | None = None) -> Summary:
        """Return the metrics for one run, for one target, or for one target in one run.

        Without arguments, return the metrics for all runs and targets.
        """
        records = [
            record
            for record in self.records
            if run in (None, record.run) and target in (None, record.target)
        ]
        return _summarize(records, self.settings)


Watch = Callable[[Progress], None]


@dataclass(slots=True)
class Benchmark:
    """A benchmark in progress.

    Each call to `run` performs one run, so that a caller can alternate between several benchmarks.

    - `measure` performs the run with the given number. It returns the run and the number of
      responses without a token count from the server.
    - `counts_tokens` is true if the client uses a tokenizer to count the tokens in responses
      without a token count.
    - `num_uncounted` is the total number of responses without a token count from the server.
    """

    settings: BenchmarkSettings
    models: tuple[ServedModel, ...]
    measure: Callable[[int, Watch], tuple[Run, int]]
    counts_tokens: bool = False
    runs: list[Run] = field(default_factory=list)
    num_uncounted: int = 0

    @property
    def num_drawn(self) -> int:
        """The sum of `Run.num_drawn` over all runs so far."""
        return sum(run.num_drawn for run in self.runs)

    def run(self, watch: Watch = lambda progress: None) -> Run:
        run, num_uncounted = self.measure(len(self.runs), watch)
        self.runs.append(run)
        self.num_uncounted += num_uncounted
        return run

    def run_all(self, watch: Watch = lambda progress: None) -> BenchmarkResult:
        """Run the benchmark `settings.repeat` times and return the result.

        Stop after a run that does not finish.
        """
        for _ in range(self.settings.repeat):
            if self.run(watch).ending != "finished":
                break
        return self.result()

    def result(self) -> BenchmarkResult:
        """Return the result of all runs so far. Call this method only after the first run."""
        records = [record for run in self.runs for record in run.records]
        summary = _summarize(records, self.settings)
        counted_here: TokenCounts = "re-tokenised" if self.counts_tokens else "responses"
        return BenchmarkResult(
            settings=replace(self.settings, repeat=max(self.settings.repeat, len(self.runs))),
            models=self.models,
            runs=tuple(self.runs),
            summary=summary,
            client=judge_client(summary, self.settings.load, [run.workers for run in self.runs]),
            token_counts=counted_here if self.num_uncounted else "server",
            versions=client_versions(),
            machine=client_machine(),
        )


def open_benchmark(
    settings: BenchmarkSettings,
    targets: Sequence[Target | OpenAITarget],
    *,
    metrics: Mapping[int, str] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Benchmark:
    """Query the targets' metadata and return a benchmark that has not run yet.

    The benchmark sends its requests to the targets in turn. `metrics` maps a target's index to the
    address of its metrics endpoint. Targets that `metrics` does not contain are not sampled.
    `tokenizer` counts a response's tokens if the server does not report them. Raise `NoServer` or
    `RequestFailed` if a query fails, or `BadInput` if a model lacks a required input.
    """
    models = tuple(_find_model(target, settings) for target in targets)

    def measure(number: int, watch: Watch) -> tuple[Run, int]:
        # Ctrl-C ends this run early, but must not discard its records or the earlier runs.
        with interruptible() as interruption:
            shares = plan_workers(
                settings,
                models,
                run=number,
                start=benchmark.num_drawn,
                keeps_text=tokenizer is not None,
            )
            run, num_uncounted = _run_once(
                settings, shares, number, watch, metrics or {}, tokenizer, interruption
            )
        return replace(
            run, ending="interrupted"
        ) if interruption.has_occurred else run, num_uncounted

    benchmark = Benchmark(settings, models, measure, counts_tokens=tokenizer is not None)
    return benchmark


def _find_model(target: Target | OpenAITarget, settings: BenchmarkSettings) -> ServedModel:
    if isinstance(target, OpenAITarget):
        return probe_model(target, settings.input_kind, settings.request_options)
    return fetch_model(target, settings.input_kind)


def run_benchmark(
    settings: BenchmarkSettings,
    targets: Sequence[Target | OpenAITarget],
    watch: Watch = lambda progress: None,
    *,
    metrics: Mapping[int, str] | None = None,
    tokenizer: Tokenizer | None = None,
) -> BenchmarkResult:
    """Send requests to the targets in turn and measure the responses.

    `watch` is called about twice a second or, with several workers, more often. It must be fast,
    because with one worker, the event loop that calls `watch` also timestamps responses. If Ctrl-C
    ends the run or all targets become unreachable, the result contains the measurements so far, and
    `is_partial` is true. See `open_benchmark` for the other parameters and the errors.
    """
    benchmark = open_benchmark(settings, targets, metrics=metrics, tokenizer=tokenizer)
    return benchmark.run_all(watch)


def _run_once(
    settings: BenchmarkSettings,
    shares: Sequence[Share],
    number: int,
    watch: Watch,
    metrics: Mapping[int, str],
    tokenizer: Tokenizer | None,
    interruption: Interruption,
) -> tuple[Run, int]:
    """Perform a run. Return the run and the number of responses without a token count."""
    planned = [share.num_planned for share in shares]
    total = None if None in planned else sum(each or 0 for each in planned)

    def report(counts: Counts) -> None:
        watch(Progress(number, total, counts.num_sent, counts.num_ended, counts.num_failed))

    started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    samples: list[ServerSample] = []
    with sampling(metrics, settings.sample_interval_s, samples):
        results = run_workers(shares, report, interruption)
    run = Run(
        started_at=started_at,
        start=results[0].start,
        ending=_ending(results),
        records=_merge(results, number, tokenizer),
        workers=tuple(result.load for result in results),
        samples=tuple(sorted(samples, key=lambda sample: sample.at_s)),
    )
    return run, sum(result.num_uncounted for result in results)


def _merge(
    results: Sequence[WorkerResult], run: int, tokenizer: Tokenizer | None
) -> tuple[RequestRecord, ...]:
    records = [
        _recount(record, result.texts.get((record.index, record.turn)), tokenizer)
        for result in results
        for record in result.records
    ]
    if run:
        records = [replace(record, run=run) for record in records]
    return tuple(sorted(records, key=lambda record: (record.index, record.turn)))


def _recount(record: RequestRecord, text: str | None, tokenizer: Tokenizer | None) -> RequestRecord:
    """Return the record with the tokens of `text` distributed evenly across the record's chunks.

    Return the record unchanged if `text` or `tokenizer` is `None`, or if the record has no chunks.
    """
    if text is None or tokenizer is None or not record.chunk_s:
        return record
    # Do not add special tokens, because they are not part of a response.
    num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
    return replace(record, chunk_tokens=spread_tokens(num_tokens, len(record.chunk_s)))


def _ending(results: Sequence[WorkerResult]) -> Ending:
    if any(result.was_interrupted for result in results):
        return "interrupted"
    # The server counts as lost even if only one worker could not reach any target. The other
    # workers may have finished before the targets became unreachable.
    return "server_lost" if any(result.is_server_lost for result in results) else "finished"


def _summarize(records: Sequence[RequestRecord], settings: BenchmarkSettings) -> Summary:
    return summarize(
        records, settings.load, streamed=settings.stream, objectives=settings.objectives
    )


def client_versions() -> dict[str, str]:
    """Return the versions of `tllm`, Python, and the client's main dependencies."""
    packages = {name: version(name) for name in ("grpcio", "numpy", "tritonclient")}
    return {"tllm": __version__, "python": platform.python_version(), **packages}


def client_machine() -> dict[str, str | int]:
    """Return this machine's platform, architecture, number of CPUs, and number of usable CPUs."""
    return {
        "platform": platform.platform(),
        "architecture": platform.machine(),
        "num_cpus": os.cpu_count() or 1,
        "num_usable_cpus": count_cores(),
    }
