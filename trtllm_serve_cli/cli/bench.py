"""`tllm bench`: load the running server and print what it did."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli import output
from trtllm_serve_cli.cli.exits import INTERRUPTED
from trtllm_serve_cli.cli.options import JsonOption, ModelOption
from trtllm_serve_cli.cli.target import find_core_model
from trtllm_serve_cli.errors import RequestFailed

if TYPE_CHECKING:
    from trtllm_serve_cli.bench import BenchmarkResult, BenchmarkSettings, Load, Progress

_MAX_TOKENS = 1_000_000
_LENGTHS = "Lengths, in tokens"
_LOAD = "Load"

bench_app = typer.Typer(
    no_args_is_help=True,
    help="Load the running server and measure it.\n\n"
    "Example:  tllm bench token-norm-dist --request-rate 5 --stream",
)


class Arrival(str, Enum):
    """The arrival processes, as words of the command line."""

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"


@bench_app.callback()
def bench() -> None:
    """Keeps `token-norm-dist` a sub-command while it is the only one."""


def _check_positive(value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"{value:g} is not a number above 0.")
    return value


@bench_app.command("token-norm-dist")
def token_norm_dist(
    input_mean: Annotated[
        int, typer.Option(min=1, max=_MAX_TOKENS, help="Mean prompt.", rich_help_panel=_LENGTHS)
    ] = 128,
    input_stdev: Annotated[
        int,
        typer.Option(
            min=0, max=_MAX_TOKENS, help="Its standard deviation.", rich_help_panel=_LENGTHS
        ),
    ] = 5,
    output_mean: Annotated[
        int, typer.Option(min=1, max=_MAX_TOKENS, help="Mean answer.", rich_help_panel=_LENGTHS)
    ] = 20,
    output_stdev: Annotated[
        int,
        typer.Option(
            min=0, max=_MAX_TOKENS, help="Its standard deviation.", rich_help_panel=_LENGTHS
        ),
    ] = 2,
    num_requests: Annotated[
        int, typer.Option(min=1, help="How many requests to measure.", rich_help_panel=_LOAD)
    ] = 100,
    request_rate: Annotated[
        float | None,
        typer.Option(
            callback=_check_positive,
            metavar="PER_SECOND",
            help="Open loop: requests are due at this mean rate, whatever the server does.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Closed loop: so many requests in flight.", rich_help_panel=_LOAD),
    ] = None,
    arrival: Annotated[
        Arrival | None,
        typer.Option(
            help="How --request-rate spaces requests (else poisson).",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(
            callback=_check_positive,
            help="Shape of --arrival gamma: 1 is poisson, less is burstier (else 1).",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    warmup: Annotated[
        int,
        typer.Option(
            min=0, help="Requests sent before, left out of the figures.", rich_help_panel=_LOAD
        ),
    ] = 1,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Same seed, same requests, same times.", rich_help_panel=_LOAD),
    ] = 0,
    stream: Annotated[
        bool, typer.Option("--stream", help="Ask for tokens one by one; measures TTFT and ITL.")
    ] = False,
    model: ModelOption = None,
    url: Annotated[
        str | None,
        typer.Option(
            "-u",
            "--url",
            metavar="HOST:PORT",
            help="The server's gRPC address; of one that is not ours, -m names its engine's model.",
        ),
    ] = None,
    output_folder: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="DIR", help="Keep summary.json and requests.jsonl in this folder."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send random token ids of normally distributed lengths to `tensorrt_llm` over gRPC.

    Without --request-rate and --concurrency, all requests are sent at once. Every answer has
    exactly the length that was drawn.

    Example:  tllm bench token-norm-dist --num-requests 64 --concurrency 8 --stream
    """
    load = _plan_load(request_rate, concurrency, arrival, burstiness)

    from trtllm_serve_cli.bench import BenchmarkSettings, TokenNormDist, report, run_benchmark

    if output_folder is not None:
        report.check_output_folder(output_folder)
    settings = BenchmarkSettings(
        workload=TokenNormDist(input_mean, input_stdev, output_mean, output_stdev),
        load=load,
        num_requests=num_requests,
        num_warmup_requests=warmup,
        stream=stream,
        seed=seed,
    )
    address, core_model = find_core_model(url, model)
    with _show_progress(settings, address) as watch:
        result = run_benchmark(settings, address, watch, core_model=core_model)
    if output_folder is not None:
        report.write_result(result, output_folder)
    _show(result, output_folder, as_json=as_json)
    _leave(result)


def _plan_load(
    request_rate: float | None,
    concurrency: int | None,
    arrival: Arrival | None,
    burstiness: float | None,
) -> Load:
    if request_rate is not None and concurrency is not None:
        raise typer.BadParameter("--request-rate and --concurrency exclude each other.")
    if arrival is not None and request_rate is None:
        raise typer.BadParameter("--arrival needs --request-rate.")
    if burstiness is not None and arrival is not Arrival.GAMMA:
        raise typer.BadParameter("--burstiness needs --arrival gamma.")

    from trtllm_serve_cli.bench import AllAtOnce, AtConcurrency, AtRate

    if concurrency is not None:
        return AtConcurrency(concurrency)
    if request_rate is None:
        return AllAtOnce()
    return AtRate(request_rate, (arrival or Arrival.POISSON).value, burstiness or 1.0)


@contextmanager
def _show_progress(
    settings: BenchmarkSettings, address: str
) -> Iterator[Callable[[Progress], None]]:
    """One line, and on a terminal a bar under it; on stderr."""
    from trtllm_serve_cli.bench.report import describe_load

    title = f"{settings.num_requests} requests to {address}, {describe_load(settings.load)}"
    screen = output.console(stderr=True)
    # A line of its own: beside a bar it leaves no room for the figures in 80 columns.
    output.say(title)
    if not screen.is_terminal:
        yield lambda progress: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn())
    in_flight = TextColumn("{task.fields[in_flight]} in flight, {task.fields[failed]} failed")
    # No thread of its own: it would take the interpreter from the load ten times a second.
    bar = Bar(*columns, in_flight, TimeElapsedColumn(), console=screen, auto_refresh=False)
    with bar:
        task = bar.add_task("", total=settings.num_requests, in_flight=0, failed=0)

        def watch(progress: Progress) -> None:
            bar.update(
                task,
                completed=progress.num_ended,
                in_flight=progress.num_sent - progress.num_ended,
                failed=progress.num_failed,
            )
            bar.refresh()

        yield watch


def _show(result: BenchmarkResult, folder: Path | None, *, as_json: bool) -> None:
    from trtllm_serve_cli.bench import report

    if as_json:
        output.show_json(report.to_json(result))
    else:
        output.show_table(
            ("Statistic", "Value"), report.stat_rows(result.summary), are_figures=True
        )
        if times := report.time_rows(result.summary):
            output.show_table(report.TIME_COLUMNS, times, are_figures=True)
    if result.model.vocab_size is None:
        output.say(f"The server does not tell its vocabulary; ids are below {result.vocab_size}.")
    for message, count in result.error_messages[:5]:
        output.say(f"{count} failed: {message}")
    if result.is_partial:
        output.say("Interrupted: the figures are partial.")
    if folder is not None:
        output.say(f"Kept in {folder}")


def _leave(result: BenchmarkResult) -> None:
    if result.is_partial:
        raise typer.Exit(INTERRUPTED)
    if result.summary.num_failed and not result.summary.num_completed:
        message, count = result.error_messages[0]
        raise RequestFailed(
            f"Every request failed: {result.summary.num_failed} of {result.summary.num_requests}.",
            why=f"{count} of them with {message}",
            next_step="tllm logs",
        )
