"""The options that every benchmark shares, and how a command gets them."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from trtllm_serve_cli.cli.shared.options import JsonOption

_AMOUNT = "How much"
_LOAD = "Load"
_MEASURED = "What is measured"
_WHERE = "Where"
_RESULT = "Result"
_SEARCH = "Search"


class Arrival(str, Enum):
    """The arrival processes, as words of the command line."""

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"


class InterfaceName(str, Enum):
    """How requests travel."""

    GRPC = "grpc"
    HTTP = "http"


def check_positive(value: float | None) -> float | None:
    """`value`, if it is a number above 0; for a number, nothing else is."""
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"{value:g} is not a number above 0.")
    return value


RepeatOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="Measure so often, with other requests each time; a data set goes on where it was.",
        rich_help_panel=_AMOUNT,
    ),
]


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """What can be said to any benchmark, sweep or search. None leaves it to the benchmark."""

    num_requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many requests to measure (conversations: how many of them). "
            "Default: 100, or all that a data set has.",
            rich_help_panel=_AMOUNT,
        ),
    ] = None
    duration: Annotated[
        float | None,
        typer.Option(
            callback=check_positive,
            metavar="SECONDS",
            help="Instead of a number: send for so long.",
            rich_help_panel=_AMOUNT,
        ),
    ] = None
    warmup: Annotated[
        int,
        typer.Option(
            min=0,
            help="Requests sent before, left out of the figures.",
            rich_help_panel=_AMOUNT,
        ),
    ] = 1
    seed: Annotated[
        int,
        typer.Option(min=0, help="Same seed, same requests, same times.", rich_help_panel=_AMOUNT),
    ] = 0
    arrival: Annotated[
        Arrival | None,
        typer.Option(
            help="How --request-rate spaces requests (else poisson).",
            rich_help_panel=_LOAD,
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(
            callback=check_positive,
            help="Shape of --arrival gamma: 1 is poisson, less is burstier (else 1).",
            rich_help_panel=_LOAD,
        ),
    ] = None
    ramp: Annotated[
        float | None,
        typer.Option(
            callback=check_positive,
            metavar="SECONDS",
            help="Let the load grow for so long; these requests are left out of the figures.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            help="Processes that send: more where one is too slow.",
            rich_help_panel=_LOAD,
        ),
    ] = 1
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="A request that takes longer is given up, and counts as failed.",
            rich_help_panel=_LOAD,
        ),
    ] = 600.0
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Ask for tokens one by one; measures TTFT and ITL.",
            rich_help_panel=_MEASURED,
        ),
    ] = False
    slo: Annotated[
        list[str] | None,
        typer.Option(
            "--slo",
            metavar="OBJECTIVE",
            help="Such as 'ttft:p95<500ms'; repeated, goodput is of what meets all of them.",
            rich_help_panel=_MEASURED,
        ),
    ] = None
    server_times: Annotated[
        bool,
        typer.Option(
            "--server-times",
            help="Ask the server with each request how long it waited for the engine.",
            rich_help_panel=_MEASURED,
        ),
    ] = False
    sample_interval: Annotated[
        float,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="How often the server's own metrics are kept beside the requests.",
            rich_help_panel=_MEASURED,
        ),
    ] = 1.0
    model: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--model",
            metavar="NAME",
            help="The model, by its name in `tllm list`; several are loaded in turns.",
            rich_help_panel=_WHERE,
        ),
    ] = None
    url: Annotated[
        list[str] | None,
        typer.Option(
            "-u",
            "--url",
            metavar="HOST:PORT",
            help="The server's gRPC address (with -i http its HTTP address), repeated for several; "
            "of one that is not ours, -m names the model to load itself.",
            rich_help_panel=_WHERE,
        ),
    ] = None
    interface: Annotated[
        InterfaceName,
        typer.Option("-i", "--interface", help="How to ask.", rich_help_panel=_WHERE),
    ] = InterfaceName.GRPC
    metrics_url: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics-url",
            metavar="HOST:PORT",
            help="Metrics of a server that is not ours; one for each -u.",
            rich_help_panel=_WHERE,
        ),
    ] = None
    simulate: Annotated[
        str | None,
        typer.Option(
            "--simulate",
            metavar="NAME|FILE",
            help="No server: simulate this imported model of the engine kind sim, or this timing "
            "(docs/simulation.md).",
            rich_help_panel=_WHERE,
        ),
    ] = None
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            min=1,
            help="With --simulate: so many engines, each request to the one with the fewest.",
            rich_help_panel=_WHERE,
        ),
    ] = 1
    output_folder: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Keep summary.json, requests.jsonl and server_samples.jsonl in this folder.",
            rich_help_panel=_RESULT,
        ),
    ] = None
    as_json: JsonOption = False

    def shared(self) -> dict[str, Any]:
        """What is shared, by name: for options of another kind."""
        return {field.name: getattr(self, field.name) for field in fields(SharedOptions)}


@dataclass(frozen=True, slots=True)
class CommonOptions(SharedOptions):
    """One benchmark: its load, and what its figures are held against."""

    repeat: RepeatOption = 1
    request_rate: Annotated[
        float | None,
        typer.Option(
            callback=check_positive,
            metavar="PER_SECOND",
            help="Open loop: requests are due at this mean rate, whatever the server does.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Closed loop: so many requests in flight. With a rate: at most so many.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    op_stats_csv: Annotated[
        Path | None,
        typer.Option(
            "--op-stats-csv",
            metavar="FILE",
            help="Add a line to this CSV file, in upstream's form.",
            rich_help_panel=_RESULT,
        ),
    ] = None
    check_perf_json: Annotated[
        Path | None,
        typer.Option(
            "--check-perf-json",
            metavar="FILE",
            help="Fail (exit code 3) if the figures are not those of this file, upstream's way.",
            rich_help_panel=_RESULT,
        ),
    ] = None
    check_perf_key: Annotated[
        str | None,
        typer.Option("--check-perf-key", help="Which entry of it.", rich_help_panel=_RESULT),
    ] = None
    check_perf_atol: Annotated[
        float,
        typer.Option(
            "--check-perf-atol", min=0, help="Absolute tolerance.", rich_help_panel=_RESULT
        ),
    ] = 50.0
    check_perf_rtol: Annotated[
        float,
        typer.Option(
            "--check-perf-rtol", min=0, help="Relative tolerance.", rich_help_panel=_RESULT
        ),
    ] = 0.05


@dataclass(frozen=True, slots=True)
class SweepOptions(SharedOptions):
    """What a sweep takes in place of one load."""

    request_rates: Annotated[
        str | None,
        typer.Option(
            "--request-rate",
            metavar="R,R,…",
            help="Open loop at each of these mean rates.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    concurrencies: Annotated[
        str | None,
        typer.Option(
            "--concurrency",
            metavar="C,C,…",
            help="Closed loop with each of these in flight. With rates: each rate with each cap.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    repeat: RepeatOption = 1


@dataclass(frozen=True, slots=True)
class SearchOptions(SharedOptions):
    """Where a search looks, and how closely."""

    min_rate: Annotated[
        float,
        typer.Option(
            callback=check_positive,
            metavar="PER_SECOND",
            help="The rate to begin with.",
            rich_help_panel=_SEARCH,
        ),
    ] = 1.0
    max_rate: Annotated[
        float | None,
        typer.Option(
            callback=check_positive,
            metavar="PER_SECOND",
            help="Look no further. Default: until an objective is missed.",
            rich_help_panel=_SEARCH,
        ),
    ] = None
    precision: Annotated[
        float,
        typer.Option(
            min=0.1, max=100, metavar="PERCENT", help="How near to come.", rich_help_panel=_SEARCH
        ),
    ] = 5.0
    max_runs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Measure a rate up to so often while chance could decide.",
            rich_help_panel=_SEARCH,
        ),
    ] = 5
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="At most so many requests in flight.", rich_help_panel=_LOAD),
    ] = None


def with_options(
    function: Callable[..., None], options: type[SharedOptions], example: str = ""
) -> Callable[..., None]:
    """`function`, which takes `common`, as a command with an option for each field of `options`.

    Typer reads a command's options off its signature: this writes one. What `options` adds to the
    shared ones is listed first. `example` takes the place of the function's own.
    """
    own = [
        parameter
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        if parameter.name != "common"
    ]
    hints = get_type_hints(options, include_extras=True)
    names = [field.name for field in fields(options)]
    inherited = {field.name for field in fields(SharedOptions)}
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in sorted(fields(options), key=lambda field: field.name in inherited)
    ]

    def command(**given: Any) -> None:
        common = options(**{name: given.pop(name) for name in names})
        function(**given, common=common)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + shared
    functools.update_wrapper(command, function)
    if example:
        about = inspect.cleandoc(function.__doc__ or "").partition("Example:")[0]
        command.__doc__ = f"{about}Example:  {example}"
    del vars(command)["__wrapped__"]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
