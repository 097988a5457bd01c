"""From the options of a benchmark to its result on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import typer

from trtllm_serve_cli.cli.bench.bench_options import Arrival, CommonOptions, SharedOptions
from trtllm_serve_cli.cli.bench.bench_progress import show_progress
from trtllm_serve_cli.cli.bench.simulate_option import open_simulation
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED
from trtllm_serve_cli.cli.shared.target import LoadTarget, find_load_target
from trtllm_serve_cli.errors import RequestFailed

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
    from trtllm_serve_cli.bench.model.arrivals import Load
    from trtllm_serve_cli.bench.model.slo import Objective
    from trtllm_serve_cli.bench.report.checks import Reference
    from trtllm_serve_cli.bench.run.benchmark import Benchmark, BenchmarkResult
    from trtllm_serve_cli.bench.workloads.dataset import Tokenizer
    from trtllm_serve_cli.bench.workloads.spec import Workload

_DEFAULT_NUM_REQUESTS = 100
# The metrics that only streamed answers have.
_STREAMED = ("ttft", "itl", "tpot")


@dataclass(frozen=True, slots=True)
class Job:
    """A benchmark as its command understands it; `text_model` as in `find_load_target`."""

    name: str
    common: SharedOptions
    text_model: str | None = None

    def find_targets(self) -> list[LoadTarget]:
        """Every model of every server that was named, or the one that is running."""
        common = self.common
        found = [
            find_load_target(url, common.interface.value, model, self.text_model)
            for url in common.url or (None,)
            for model in common.model or (None,)
        ]
        pages = common.metrics_url
        if not pages:
            return found
        if len(pages) != len(common.url or ()):
            raise typer.BadParameter("--metrics-url is given once for each -u.")
        from dataclasses import replace

        from trtllm_serve_cli.client.address import parse_address

        per_url = len(found) // len(pages)
        return [
            replace(target, metrics=parse_address(pages[index // per_url]))
            for index, target in enumerate(found)
        ]


def run_job(
    job: Job,
    workload: Workload,
    targets: Sequence[LoadTarget] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Run the benchmark, the sweep or the search that the options ask for; show and keep it.

    Raises what its exit code stands for.
    """
    from trtllm_serve_cli.cli.bench.search_command import SearchOptions, run_search_job
    from trtllm_serve_cli.cli.bench.sweep_command import SweepOptions, run_sweep_job

    match job.common:
        case SweepOptions() as options:
            run_sweep_job(job, options, workload, tokenizer)
        case SearchOptions() as options:
            run_search_job(job, options, workload, targets, tokenizer)
        case CommonOptions() as options:
            _run_one(job, options, workload, targets, tokenizer)


def _run_one(
    job: Job,
    common: CommonOptions,
    workload: Workload,
    targets: Sequence[LoadTarget] | None,
    tokenizer: Tokenizer | None,
) -> None:
    settings = plan_settings(job, common, workload)
    reference = _read_reference(common)

    from trtllm_serve_cli.bench.report import result_json
    from trtllm_serve_cli.bench.report.checks import check

    if common.output_folder is not None:
        result_json.check_output_folder(common.output_folder)
    benchmark = open_points([(job, settings)], targets, tokenizer)[0]
    with show_progress(settings, addresses_of(benchmark)) as watch:
        result = benchmark.run_all(watch)
    if common.output_folder is not None:
        from trtllm_serve_cli.bench.report.report_writer import write_views

        result_json.write_result(result, common.output_folder)
        write_views(common.output_folder)
    if common.op_stats_csv is not None:
        result_json.append_csv(result.summary, common.op_stats_csv)
    _show(result, common.output_folder, as_json=common.as_json)
    raise_ending([result])
    if reference is not None:
        check(result_json.csv_row(result.summary), reference)


def open_points(
    points: Sequence[tuple[Job, BenchmarkSettings]],
    targets: Sequence[LoadTarget] | None,
    tokenizer: Tokenizer | None,
) -> list[Benchmark]:
    """A benchmark of each point's own targets, unless `targets` are given; or its simulation."""
    from trtllm_serve_cli.bench.model.served_model import Target
    from trtllm_serve_cli.bench.run.benchmark import open_benchmark

    opened = []
    for job, settings in points:
        if job.common.virtual is not None:
            opened.append(open_simulation(settings, job.common.virtual, job.common))
            continue
        found = job.find_targets() if targets is None else targets
        interface: Literal["grpc", "http"] = job.common.interface.value
        opened.append(
            open_benchmark(
                settings,
                [Target(target.address, target.model, interface) for target in found],
                metrics=_metrics_pages(found),
                tokenizer=tokenizer,
            )
        )
    return opened


def addresses_of(benchmark: Benchmark) -> list[str]:
    """Where it sends."""
    return [model.address for model in benchmark.models]


def plan_settings(job: Job, common: CommonOptions, workload: Workload) -> BenchmarkSettings:
    """The settings that the options mean; raises `BadParameter` for what contradicts itself."""
    from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
    from trtllm_serve_cli.bench.model.arrivals import AllAtOnce

    load = _plan_load(common, workload)
    if common.duration is not None and common.num_requests is not None:
        raise typer.BadParameter("--duration and --num-requests exclude each other.")
    if common.duration is not None and isinstance(load, AllAtOnce):
        raise typer.BadParameter("--duration needs --request-rate or --concurrency.")
    if common.replicas > 1 and common.virtual is None:
        raise typer.BadParameter("--replicas needs --virtual.")
    return BenchmarkSettings(
        workload=workload,
        load=load,
        num_requests=common.num_requests or workload.num_available or _DEFAULT_NUM_REQUESTS,
        duration_s=common.duration,
        num_warmup_requests=common.warmup,
        stream=common.stream,
        seed=common.seed,
        name=job.name,
        takes="tokens" if job.text_model is None else "text",
        repeat=common.repeat,
        num_workers=common.workers,
        timeout_s=common.timeout,
        wants_times=common.server_times,
        objectives=_parse_objectives(common),
        sample_interval_s=common.sample_interval,
    )


def _plan_load(common: CommonOptions, workload: Workload) -> Load:
    from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, AtRate, AtTimes
    from trtllm_serve_cli.bench.workloads.trace import Trace

    rate, concurrency, ramp_s = common.request_rate, common.concurrency, common.ramp or 0.0
    if common.arrival is not None and rate is None:
        raise typer.BadParameter("--arrival needs --request-rate.")
    if common.burstiness is not None and common.arrival is not Arrival.GAMMA:
        raise typer.BadParameter("--burstiness needs --arrival gamma.")
    if rate is not None:
        return AtRate(
            rate,
            (common.arrival or Arrival.POISSON).value,
            common.burstiness or 1.0,
            concurrency,
            ramp_s,
        )
    if isinstance(workload, Trace):
        _refuse_ramp(common)
        return AtTimes(workload.times_s, workload.speed, concurrency)
    if concurrency is not None:
        return AtConcurrency(concurrency, ramp_s)
    _refuse_ramp(common)
    return AllAtOnce()


def _refuse_ramp(common: CommonOptions) -> None:
    if common.ramp is not None:
        raise typer.BadParameter("--ramp needs --request-rate or --concurrency.")


def _parse_objectives(common: SharedOptions) -> tuple[Objective, ...]:
    from trtllm_serve_cli.bench.model.slo import parse_objective

    objectives = tuple(parse_objective(text) for text in common.slo or ())
    for objective in objectives:
        if objective.metric in _STREAMED and not common.stream:
            raise typer.BadParameter(f"--slo {objective} needs --stream.")
        if objective.metric == "queue" and not common.server_times:
            raise typer.BadParameter(f"--slo {objective} needs --server-times.")
    return objectives


def _read_reference(common: CommonOptions) -> Reference | None:
    if common.check_perf_json is None:
        if common.check_perf_key is not None:
            raise typer.BadParameter("--check-perf-key needs --check-perf-json.")
        return None
    if common.check_perf_key is None:
        raise typer.BadParameter("--check-perf-json needs --check-perf-key.")
    from trtllm_serve_cli.bench.report.checks import read_reference

    return read_reference(
        common.check_perf_json,
        common.check_perf_key,
        common.check_perf_atol,
        common.check_perf_rtol,
    )


def _metrics_pages(targets: Sequence[LoadTarget]) -> dict[int, str]:
    """Each page once, at the first target that it is of."""
    pages: dict[str, int] = {}
    for index, target in enumerate(targets):
        if target.metrics is not None:
            pages.setdefault(target.metrics, index)
    return {index: page for page, index in pages.items()}


def _show(result: BenchmarkResult, folder: Path | None, *, as_json: bool) -> None:
    from trtllm_serve_cli.bench.report import result_json

    if as_json:
        output.show_json(result_json.to_json(result))
    else:
        _show_tables(result)
    say_remarks(result)
    if result.ending == "interrupted":
        output.say("Interrupted: the figures are partial.")
    say_kept(folder)


def say_kept(folder: Path | None) -> None:
    """Where the result lies, if it was kept."""
    if folder is not None:
        output.say(f"Kept in {folder}, with a page: {folder / 'report.html'}")


def say_remarks(result: BenchmarkResult, where: str = "") -> None:
    """What one must know of the figures, and what failed; in red, if the client was too slow."""
    from trtllm_serve_cli.bench.report import tables

    for remark in tables.remarks(result):
        output.say(f"{where}{remark}")
    for message, count in result.error_messages[:5]:
        output.say(f"{where}{count} failed: {message}")
    screen = output.console(stderr=True)
    for bottleneck in result.client.bottlenecks:
        screen.print(f"{where}The client was the bottleneck: {bottleneck}.", style="bold red")


def _show_tables(result: BenchmarkResult) -> None:
    from trtllm_serve_cli.bench.report import tables

    summary = result.summary
    output.show_table(("Statistic", "Value"), tables.stat_rows(summary), are_figures=True)
    for columns, rows in (
        (tables.TIME_COLUMNS, tables.time_rows(summary)),
        (tables.OBJECTIVE_COLUMNS, tables.objective_rows(summary)),
        (tables.TARGET_COLUMNS, tables.target_rows(result)),
        (tables.RUN_COLUMNS, tables.run_rows(result)),
    ):
        if rows:
            output.show_table(columns, rows, are_figures=True)


def raise_ending(results: Sequence[BenchmarkResult]) -> None:
    """Leave with what the first stands for that was cut off, or else of which nothing came back."""
    cut_off = [each for each in results if each.is_partial]
    failed = [r for r in results if r.summary.num_failed and not r.summary.num_completed]
    for result in (*cut_off, *failed):
        _leave_with(result)


def _leave_with(result: BenchmarkResult) -> NoReturn:
    summary = result.summary
    if result.ending == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if result.ending == "server_lost":
        raise RequestFailed(
            "The server was lost in the middle of the run.",
            why=f"{summary.num_completed} requests were completed before, {summary.num_failed} "
            "failed; it then refused every connection, and nothing more was sent",
            next_step="tllm status",
        )
    message, count = result.error_messages[0]
    raise RequestFailed(
        f"Every request failed: {summary.num_failed} of {summary.num_requests}.",
        why=f"{count} of them with {message}",
        next_step="tllm logs",
    )
