"""Declare the options for benchmarks, sweeps and searches, and add the options to commands."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from trtllm_serve_cli.choices import ArrivalProcess
from trtllm_serve_cli.cli.shared.option_signature import builds_options
from trtllm_serve_cli.cli.shared.options import AsJson
from trtllm_serve_cli.client.generate import Interface
from trtllm_serve_cli.option_fields import Option, Within

_AMOUNT = "Amount"
_LOAD = "Load"
_MEASURED = "Measurement"
_WHERE = "Target"
_RESULT = "Result"
_SEARCH = "Search"


def check_positive(value: float) -> None:
    """Raise `ValueError` unless the value is a finite number above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{value:g} is not a number above 0.")


RepeatOption = Annotated[
    int,
    Within(1),
    Option(
        "Repeat the measurement N times with different requests. Data sets continue where the "
        "previous run stopped.",
        panel=_AMOUNT,
    ),
]


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """Options for every benchmark, sweep and search; None selects the benchmark's default."""

    num_requests: Annotated[
        int | None,
        Within(1),
        Option(
            "Number of requests to measure, or of conversations in multi-turn. Default: 100, or "
            "all entries of a data set.",
            panel=_AMOUNT,
        ),
    ] = None
    duration: Annotated[
        float | None,
        Option(
            "Send requests for this time instead of a number of requests.",
            metavar="SECONDS",
            panel=_AMOUNT,
            check=check_positive,
        ),
    ] = None
    warmup: Annotated[
        int,
        Within(0),
        Option("Number of requests to send before the measurement.", panel=_AMOUNT),
    ] = 1
    seed: Annotated[
        int,
        Within(0),
        Option("Random seed of the requests and their arrival times.", panel=_AMOUNT),
    ] = 0
    arrival: Annotated[
        ArrivalProcess | None,
        Option("Arrival process of --request-rate. Default: poisson.", panel=_LOAD),
    ] = None
    burstiness: Annotated[
        float | None,
        Option(
            "Shape of --arrival gamma: 1 equals poisson, lower values are burstier. Default: 1.",
            panel=_LOAD,
            check=check_positive,
        ),
    ] = None
    ramp: Annotated[
        float | None,
        Option(
            "Ramp the load up over this time before the measurement.",
            metavar="SECONDS",
            panel=_LOAD,
            check=check_positive,
        ),
    ] = None
    workers: Annotated[
        int,
        Within(1),
        Option("Number of processes that send requests.", panel=_LOAD),
    ] = 1
    timeout: Annotated[
        float,
        Within(0.001),
        Option(
            "Cancel a request after this time, and count it as failed.",
            metavar="SECONDS",
            panel=_LOAD,
        ),
    ] = 600.0
    stream: Annotated[
        bool,
        Option(
            "Stream the responses, to measure TTFT and ITL.",
            flags=("--stream",),
            panel=_MEASURED,
        ),
    ] = False
    slo: Annotated[
        tuple[str, ...],
        Option(
            "Objective (SLO), such as 'ttft:p95<500ms'; repeatable. Goodput is the rate of "
            "requests that meet all objectives.",
            flags=("--slo",),
            metavar="OBJECTIVE",
            panel=_MEASURED,
        ),
    ] = ()
    server_times: Annotated[
        bool,
        Option(
            "Request the server's timings, such as the time in the queue.",
            flags=("--server-times",),
            panel=_MEASURED,
        ),
    ] = False
    sample_interval: Annotated[
        float,
        Within(0.1),
        Option(
            "Interval at which the server's metrics are sampled.",
            metavar="SECONDS",
            panel=_MEASURED,
        ),
    ] = 1.0
    model: Annotated[
        tuple[str, ...],
        Option(
            "Name of the model, as shown by `tllm list`; repeatable. Requests alternate between "
            "several models.",
            flags=("-m", "--model"),
            metavar="NAME",
            panel=_WHERE,
        ),
    ] = ()
    url: Annotated[
        tuple[str, ...],
        Option(
            "gRPC address of the server, or HTTP address with -i http; repeatable. For a server "
            "that tllm did not start, -m is the name of a Triton model. Default: the running "
            "server.",
            flags=("-u", "--url"),
            metavar="HOST:PORT",
            panel=_WHERE,
        ),
    ] = ()
    interface: Annotated[
        Interface,
        Option("Protocol of the requests.", flags=("-i", "--interface"), panel=_WHERE),
    ] = "grpc"
    metrics_url: Annotated[
        tuple[str, ...],
        Option(
            "Metrics address of a server that tllm did not start; one for each -u.",
            flags=("--metrics-url",),
            metavar="HOST:PORT",
            panel=_WHERE,
        ),
    ] = ()
    simulate: Annotated[
        str | None,
        Option(
            "Simulate an imported model of the engine kind sim, or a timing file, without a "
            "server (docs/concepts/simulation.md).",
            flags=("--simulate",),
            metavar="NAME|FILE",
            panel=_WHERE,
        ),
    ] = None
    replicas: Annotated[
        int,
        Within(1),
        Option(
            "Number of engines to simulate; each request goes to the engine with the fewest "
            "requests.",
            flags=("--replicas",),
            panel=_WHERE,
        ),
    ] = 1
    output_folder: Annotated[
        Path | None,
        Option(
            "Folder to write the result to: summary.json, requests.jsonl, server_samples.jsonl "
            "and report.html.",
            flags=("--output",),
            metavar="DIR",
            panel=_RESULT,
        ),
    ] = None
    as_json: AsJson = False

    def shared_values(self) -> dict[str, Any]:
        """Return the values of the shared options, by name."""
        return {field.name: getattr(self, field.name) for field in fields(SharedOptions)}


@dataclass(frozen=True, slots=True)
class CommonOptions(SharedOptions):
    """Options for a single benchmark: its load, and the reference to compare its results with."""

    repeat: RepeatOption = 1
    request_rate: Annotated[
        float | None,
        Option(
            "Open loop: send requests at this mean rate, independent of responses.",
            metavar="PER_SECOND",
            panel=_LOAD,
            check=check_positive,
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        Within(1),
        Option(
            "Closed loop: keep this number of requests in flight. With --request-rate: limit the "
            "requests in flight.",
            panel=_LOAD,
        ),
    ] = None
    op_stats_csv: Annotated[
        Path | None,
        Option(
            "CSV file to append a line to, in upstream's format.",
            flags=("--op-stats-csv",),
            metavar="FILE",
            panel=_RESULT,
        ),
    ] = None
    check_perf_json: Annotated[
        Path | None,
        Option(
            "Exit with code 3 if the results differ from this file, in upstream's format.",
            flags=("--check-perf-json",),
            metavar="FILE",
            panel=_RESULT,
        ),
    ] = None
    check_perf_key: Annotated[
        str | None,
        Option(
            "Entry of --check-perf-json to compare with.",
            flags=("--check-perf-key",),
            panel=_RESULT,
        ),
    ] = None
    check_perf_atol: Annotated[
        float,
        Within(0),
        Option(
            "Absolute tolerance for --check-perf-json.", flags=("--check-perf-atol",), panel=_RESULT
        ),
    ] = 50.0
    check_perf_rtol: Annotated[
        float,
        Within(0),
        Option(
            "Relative tolerance for --check-perf-json.", flags=("--check-perf-rtol",), panel=_RESULT
        ),
    ] = 0.05


@dataclass(frozen=True, slots=True)
class SweepOptions(SharedOptions):
    """Options for a sweep: the loads to measure."""

    request_rates: Annotated[
        str | None,
        Option(
            "Open loop: measure one point for each of these mean rates.",
            flags=("--request-rate",),
            metavar="R,R,…",
            panel=_LOAD,
        ),
    ] = None
    concurrencies: Annotated[
        str | None,
        Option(
            "Closed loop: measure one point for each of these numbers of requests in flight. With "
            "--request-rate: measure each rate with each limit.",
            flags=("--concurrency",),
            metavar="C,C,…",
            panel=_LOAD,
        ),
    ] = None
    repeat: RepeatOption = 1


@dataclass(frozen=True, slots=True)
class SearchOptions(SharedOptions):
    """Options for a search: the range of rates and the precision."""

    min_rate: Annotated[
        float,
        Option(
            "Lowest rate to measure.", metavar="PER_SECOND", panel=_SEARCH, check=check_positive
        ),
    ] = 1.0
    max_rate: Annotated[
        float | None,
        Option(
            "Highest rate to measure. Default: until an objective is missed.",
            metavar="PER_SECOND",
            panel=_SEARCH,
            check=check_positive,
        ),
    ] = None
    precision: Annotated[
        float,
        Within(0.1, 100),
        Option("Relative precision of the result.", metavar="PERCENT", panel=_SEARCH),
    ] = 5.0
    max_runs: Annotated[
        int,
        Within(1),
        Option(
            "Maximum number of measurements of one rate if its result is within noise.",
            panel=_SEARCH,
        ),
    ] = 5
    concurrency: Annotated[
        int | None,
        Within(1),
        Option("Maximum number of requests in flight.", panel=_LOAD),
    ] = None


def with_options(
    function: Callable[..., None], options: type[SharedOptions], example: str = ""
) -> Callable[..., None]:
    """Return a command that calls `function` with an instance of `options` as `common`.

    `--help` lists these options after the function's own options, and first the options that
    `SharedOptions` does not have. `example` replaces the example in the function's docstring.
    """
    inherited = {field.name for field in fields(SharedOptions)}
    add = builds_options("common", options, key=lambda field: field.name in inherited, at_end=True)
    command = add(function)
    if example:
        about = inspect.cleandoc(function.__doc__ or "").partition("Example:")[0]
        command.__doc__ = f"{about}Example:  {example}"
    return command
