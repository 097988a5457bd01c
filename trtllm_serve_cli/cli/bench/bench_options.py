"""Declare the options for benchmarks, sweeps and searches, and add them to commands."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from trtllm_serve_cli.choices import ArrivalProcess
from trtllm_serve_cli.cli.shared.completion import addresses, completes
from trtllm_serve_cli.cli.shared.openai_options import ApiKeyOption, BenchApiOption
from trtllm_serve_cli.cli.shared.option_signature import builds_options
from trtllm_serve_cli.cli.shared.options import AsJson
from trtllm_serve_cli.cli.shared.target import TlsCaOption
from trtllm_serve_cli.client.generate import Interface
from trtllm_serve_cli.option_fields import Option, Within

_AMOUNT = "Amount"
_LOAD = "Load"
_MEASURED = "Measurement"
_WHERE = "Target"
_RESULT = "Result"
_SEARCH = "Search"


def check_positive(value: float) -> None:
    """Raise `ValueError` unless the value is a positive finite number."""
    if not 0 < value < math.inf:
        raise ValueError(f"{value:g} is not a positive finite number. Pass a number above 0.")


def check_workers(value: int) -> None:
    """Raise `ValueError` if the value exceeds the number of CPU cores."""
    from trtllm_serve_cli.processes import count_cores

    if value > count_cores():
        raise ValueError(
            f"{value} exceeds the number of CPU cores that tllm may use. Pass at most "
            f"{count_cores()}, because additional processes would distort the measurement."
        )


RepeatOption = Annotated[
    int,
    Within(1),
    Option(
        "Number of runs, each with different requests. With a data set, each run continues where "
        "the previous run stopped.",
        panel=_AMOUNT,
    ),
]


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """Options that benchmarks, sweeps and searches share.

    If the value of an option is None, the option's documented default applies.
    """

    num_requests: Annotated[
        int | None,
        Within(1),
        Option(
            "Number of requests (conversations for `tllm bench multi-turn`) to measure. Default: "
            "the number of entries in the data set, trace or histograms, or 100 for other "
            "workloads. By default, searches have a time limit instead (see --duration).",
            panel=_AMOUNT,
        ),
    ] = None
    duration: Annotated[
        float | None,
        Option(
            (
                "How long to send requests, in seconds. Cannot be used with --num-requests. "
                "Default: no time limit. A search without --num-requests measures each rate for 30 "
                "seconds, or for less if --simulate is set and the rate is above 1000 requests per "
                "second."
            ),
            metavar="SECONDS",
            panel=_AMOUNT,
            check=check_positive,
        ),
    ] = None
    warmup: Annotated[
        int,
        Within(0),
        Option("Number of requests to send to each target before each run.", panel=_AMOUNT),
    ] = 1
    seed: Annotated[
        int,
        Within(0),
        Option("Random seed for the requests and their arrival times.", panel=_AMOUNT),
    ] = 0
    arrival: Annotated[
        ArrivalProcess | None,
        Option(
            (
                "Arrival process, which determines the intervals between requests at a given "
                "request rate. Default: poisson."
            ),
            panel=_LOAD,
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        Option(
            (
                "Shape parameter of the gamma distribution for --arrival gamma. 1 is equivalent "
                "to --arrival poisson, and lower values produce larger bursts. Default: 1."
            ),
            panel=_LOAD,
            check=check_positive,
        ),
    ] = None
    ramp: Annotated[
        float | None,
        Option(
            (
                "Ramp-up time before the measurement, in seconds. The load increases from zero to "
                "its full value. Default: no ramp-up."
            ),
            metavar="SECONDS",
            panel=_LOAD,
            check=check_positive,
        ),
    ] = None
    workers: Annotated[
        int,
        Within(1),
        Option(
            "Number of client processes that send requests, at most one per CPU core.",
            panel=_LOAD,
            check=check_workers,
        ),
    ] = 1
    timeout: Annotated[
        float,
        Within(0.001),
        Option(
            (
                "Request timeout, in seconds. Requests that exceed the timeout are cancelled and "
                "counted as failed."
            ),
            metavar="SECONDS",
            panel=_LOAD,
        ),
    ] = 600.0
    stream: Annotated[
        bool,
        Option(
            "Stream the responses to measure the time to first token (TTFT) and the inter-token "
            "latency (ITL).",
            flags=("--stream",),
            panel=_MEASURED,
        ),
    ] = False
    slo: Annotated[
        tuple[str, ...],
        Option(
            (
                "Service-level objective (SLO), for example 'ttft:p95<500ms'. Repeatable. If "
                "objectives are set, the result contains the goodput: the rate of requests that "
                "meet all objectives. Default: no objectives."
            ),
            flags=("--slo",),
            metavar="OBJECTIVE",
            panel=_MEASURED,
        ),
    ] = ()
    server_times: Annotated[
        bool,
        Option(
            "Collect server-side timings, for example the queue time of each request.",
            flags=("--server-times",),
            panel=_MEASURED,
        ),
    ] = False
    sample_interval: Annotated[
        float,
        Within(0.1),
        Option(
            "Interval between samples of the server's metrics, in seconds.",
            metavar="SECONDS",
            panel=_MEASURED,
        ),
    ] = 1.0
    model: Annotated[
        tuple[str, ...],
        Option(
            (
                "Model name: an imported model, as shown by `tllm list`, or a Triton model on the "
                "server, such as `ensemble`. Repeatable. A sweep measures each model separately. "
                "Other benchmarks alternate between the models. Default: the server's only model. "
                "For Triton servers that tllm did not start, the default is tensorrt_llm; for "
                "`tllm bench end-to-end`, it is the text model that --through selects."
            ),
            flags=("-m", "--model"),
            metavar="NAME",
            panel=_WHERE,
        ),
    ] = ()
    url: Annotated[
        tuple[str, ...],
        Option(
            "Server address: HOST:PORT for gRPC (or for HTTP with -i http), grpcs://HOST:PORT for "
            "gRPC with TLS, or the base URL with -i openai, for example http://127.0.0.1:8000/v1. "
            "Repeatable. For servers that tllm did not start, -m accepts only the names of the "
            "server's models. Default: the only running server. With -i openai, the "
            "OPENAI_BASE_URL environment variable overrides the default.",
            flags=("-u", "--url"),
            metavar="HOST:PORT|URL",
            panel=_WHERE,
        ),
    ] = ()
    interface: Annotated[
        Interface,
        Option(
            "Protocol for the requests. Use `openai` for any OpenAI-compatible server.",
            flags=("-i", "--interface"),
            panel=_WHERE,
        ),
    ] = "grpc"
    api: BenchApiOption = None
    api_key: ApiKeyOption = None
    tls_ca: TlsCaOption = None
    metrics_url: Annotated[
        tuple[str, ...],
        Option(
            (
                "Metrics address of a server that tllm did not start. Pass one --metrics-url for "
                "each -u, in the same order. Default: metrics are collected only from servers "
                "that tllm started."
            ),
            flags=("--metrics-url",),
            metavar="HOST:PORT",
            panel=_WHERE,
        ),
    ] = ()
    simulate: Annotated[
        str | None,
        Option(
            "Run the benchmark on a simulated engine instead of a server. NAME is an imported "
            "model with the engine kind sim, and FILE is a timing file (see "
            "docs/concepts/simulation.md). Default: send requests to a server.",
            flags=("--simulate",),
            metavar="NAME|FILE",
            panel=_WHERE,
        ),
    ] = None
    replicas: Annotated[
        int,
        Within(1),
        Option(
            (
                "Number of engines to simulate with --simulate. Each request is sent to the "
                "engine with the fewest requests in flight."
            ),
            flags=("--replicas",),
            panel=_WHERE,
        ),
    ] = 1
    output_folder: Annotated[
        Path | None,
        Option(
            "New or empty folder for the result files: summary.json, requests.jsonl, "
            "server_samples.jsonl, report.html and trace.json. A sweep or search writes the "
            "results of each load to a subfolder. Default: no files are written.",
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
    """Options for a single benchmark, including its load and the reference result."""

    repeat: RepeatOption = 1
    request_rate: Annotated[
        float | None,
        Option(
            "Mean number of requests to send per second, without waiting for responses (open "
            "loop). Default: all requests are sent at the same time, unless --concurrency or a "
            "trace determines the load.",
            metavar="PER_SECOND",
            panel=_LOAD,
            check=check_positive,
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        Within(1),
        Option(
            "Number of requests to keep in flight (closed loop). With --request-rate or a trace, "
            "the number is an upper limit. Default: no limit.",
            panel=_LOAD,
        ),
    ] = None
    op_stats_csv: Annotated[
        Path | None,
        Option(
            "Append a row of results to this CSV file. Default: no file.",
            flags=("--op-stats-csv",),
            metavar="FILE",
            panel=_RESULT,
        ),
    ] = None
    check_perf_json: Annotated[
        Path | None,
        Option(
            "File with reference results, as used by NVIDIA's benchmark_core_model.py. The exit "
            "code is 3 if a result differs from the reference by more than the tolerances. "
            "Default: no check.",
            flags=("--check-perf-json",),
            metavar="FILE",
            panel=_RESULT,
        ),
    ] = None
    check_perf_key: Annotated[
        str | None,
        Option(
            "Key of the reference results in the --check-perf-json file. Required with "
            "--check-perf-json.",
            flags=("--check-perf-key",),
            panel=_RESULT,
        ),
    ] = None
    check_perf_atol: Annotated[
        float | None,
        Within(0),
        Option(
            "Absolute tolerance for --check-perf-json. Default: 50.",
            flags=("--check-perf-atol",),
            panel=_RESULT,
        ),
    ] = None
    check_perf_rtol: Annotated[
        float | None,
        Within(0),
        Option(
            "Relative tolerance for --check-perf-json. Default: 0.05.",
            flags=("--check-perf-rtol",),
            panel=_RESULT,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SweepOptions(SharedOptions):
    """Options for a sweep, including the loads to measure."""

    request_rates: Annotated[
        str | None,
        Option(
            "Comma-separated list of mean request rates per second (open loop). Each rate is one "
            "point of the sweep.",
            flags=("--request-rate",),
            metavar="R,R,…",
            panel=_LOAD,
        ),
    ] = None
    concurrencies: Annotated[
        str | None,
        Option(
            "Comma-separated list of concurrency levels: numbers of requests to keep in flight "
            "(closed loop). Each level is one point of the sweep. With --request-rate or a trace, "
            "the levels are upper limits, and each rate is measured with each limit.",
            flags=("--concurrency",),
            metavar="C,C,…",
            panel=_LOAD,
        ),
    ] = None
    repeat: RepeatOption = 1


@dataclass(frozen=True, slots=True)
class SearchOptions(SharedOptions):
    """Options for a search, including the range of rates and the precision."""

    min_rate: Annotated[
        float,
        Option(
            "Lowest request rate to measure, per second.",
            metavar="PER_SECOND",
            panel=_SEARCH,
            check=check_positive,
        ),
    ] = 1.0
    max_rate: Annotated[
        float | None,
        Option(
            "Highest request rate to measure, per second. The search ends if this rate meets "
            "every objective. Default: 1000 times --min-rate.",
            metavar="PER_SECOND",
            panel=_SEARCH,
            check=check_positive,
        ),
    ] = None
    precision: Annotated[
        float,
        Within(0.1, 100),
        Option(
            "Relative precision of the result. The search ends when the lowest rate that missed an "
            "objective is at most this percentage above the highest rate that met every objective.",
            metavar="PERCENT",
            panel=_SEARCH,
        ),
    ] = 5.0
    max_runs: Annotated[
        int,
        Within(1),
        Option(
            (
                "Maximum number of measurements per rate. Measurements are repeated if noise "
                "could change whether the rate meets the objectives."
            ),
            panel=_SEARCH,
        ),
    ] = 5
    concurrency: Annotated[
        int | None,
        Within(1),
        Option("Maximum number of requests in flight. Default: no limit.", panel=_LOAD),
    ] = None


def with_options(
    function: Callable[..., None], options: type[SharedOptions], example: str = ""
) -> Callable[..., None]:
    """Return a command that passes an instance of `options` to `function` as `common`.

    `--help` first lists the function's other parameters, then the options that only `options`
    declares, and finally the shared options. `example` replaces the example in the function's
    docstring.
    """
    inherited = {field.name for field in fields(SharedOptions)}
    add = builds_options("common", options, key=lambda field: field.name in inherited, at_end=True)
    command = completes(url=addresses("grpc", "http"))(add(function))
    if example:
        about = inspect.cleandoc(function.__doc__ or "").partition("Example:")[0]
        command.__doc__ = f"{about}Example:  {example}"
    return command
