"""How a server is started: what `tllm start` is given, and what models declare."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from trtllm_serve_cli.choices import (
    COUNT,
    PORT,
    SECONDS,
    VERBOSITY,
    ContainerEngine,
    LaunchMode,
    LogFormat,
    ModelControlMode,
    RequestLogging,
)
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.option_fields import Option, OptionField, option_fields

# How long requests in flight have when a server stops, in seconds, unless a command says otherwise.
DRAIN_S = 30

_SERVER = "Server"
_PROCESSES = "Processes and containers"
_TRITON = "Triton"
_TELEMETRY = "Logs and traces"
_TLS = "TLS"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How a server is started: the options of `tllm start`, and `launch` of a tllm.yaml.

    `world_size` and the options below it have the names of upstream's launch script; the options of
    the panel Triton have the names of Triton's own.
    """

    host: Annotated[
        str,
        Option(
            "Address to bind. Triton has no authentication: anyone who reaches the address can "
            "use the server.",
            panel=_SERVER,
        ),
    ] = "127.0.0.1"
    http_port: Annotated[int, PORT, Option("HTTP port.", panel=_SERVER)] = 8000
    grpc_port: Annotated[int, PORT, Option("gRPC port.", panel=_SERVER)] = 8001
    metrics_port: Annotated[int, PORT, Option("Metrics port.", panel=_SERVER)] = 8002
    timeout_s: Annotated[
        float,
        SECONDS,
        Option(
            "Time until the server must be ready.",
            flags=("--timeout",),
            metavar="SECONDS",
            panel=_SERVER,
        ),
    ] = 300.0
    log_verbose: Annotated[int, VERBOSITY, Option("Triton's verbosity.", panel=_TRITON)] = 0
    mode: Annotated[
        LaunchMode,
        Option(
            "How Triton runs: local, in a container, or under mpirun. auto uses a container if "
            "this machine cannot run Triton itself.",
            panel=_SERVER,
        ),
    ] = "local"
    gpus: Annotated[
        str | None,
        Option(
            "GPUs to use, such as 0,1 or GPU-… or MIG-…. Default: all.",
            metavar="IDS",
            panel=_PROCESSES,
        ),
    ] = None
    image: Annotated[
        str | None,
        Option(
            "Container image. Default: the one that the engine needs.",
            metavar="IMAGE",
            panel=_PROCESSES,
        ),
    ] = None
    container_engine: Annotated[
        ContainerEngine | None,
        Option("Container engine. Default: the first that works.", panel=_PROCESSES),
    ] = None
    world_size: Annotated[
        int | None,
        COUNT,
        Option(
            "Processes of --mode mpi. Default: as many as the engine has ranks.",
            metavar="N",
            panel=_PROCESSES,
        ),
    ] = None
    multi_model: Annotated[
        bool,
        Option(
            "Orchestrator mode: Triton spawns the processes of the engines. Several engines "
            "always run in this mode.",
            flags=("--multi-model/--no-multi-model",),
            panel=_PROCESSES,
        ),
    ] = False
    disable_spawn_processes: Annotated[
        bool,
        Option(
            "Orchestrator mode in which mpirun starts the processes of the engines; models need "
            "participant_ids.",
            flags=("--disable-spawn-processes/--no-disable-spawn-processes",),
            panel=_PROCESSES,
        ),
    ] = False
    oversubscribe: Annotated[
        bool,
        Option(
            "Let mpirun start more processes than there are cores.",
            flags=("--oversubscribe/--no-oversubscribe",),
            panel=_PROCESSES,
        ),
    ] = False
    hostfile: Annotated[
        Path | None,
        Option(
            "Nodes for mpirun, one per line; this machine must be the first.",
            metavar="FILE",
            panel=_PROCESSES,
        ),
    ] = None
    model_control_mode: Annotated[
        ModelControlMode,
        Option(
            "none loads all models at the start; explicit allows `tllm load` and `tllm unload`; "
            "poll reloads models that change on disk.",
            panel=_TRITON,
        ),
    ] = "none"
    load_model: Annotated[
        tuple[str, ...],
        Option(
            "Load only this model in the mode explicit; repeatable.", metavar="NAME", panel=_TRITON
        ),
    ] = ()
    cache_config: Annotated[
        str | None,
        Option("Response cache, such as local,size=1048576.", metavar="CONFIG", panel=_TRITON),
    ] = None
    trace_config: Annotated[
        tuple[str, ...],
        Option("Tracing, such as level=TIMESTAMPS; repeatable.", metavar="CONFIG", panel=_TRITON),
    ] = ()
    grpc_server_cert: Annotated[
        Path | None, Option("Certificate of the gRPC server.", metavar="PEM", panel=_TLS)
    ] = None
    grpc_server_key: Annotated[
        Path | None, Option("Key of that certificate.", metavar="PEM", panel=_TLS)
    ] = None
    grpc_root_cert: Annotated[
        Path | None,
        Option(
            "Certificate authority that must have signed the clients' certificates.",
            metavar="PEM",
            panel=_TLS,
        ),
    ] = None
    triton_args: Annotated[
        tuple[str, ...],
        Option("Any other option of tritonserver.", metavar="[-- OPTION…]", is_argument=True),
    ] = ()
    log_format: Annotated[
        LogFormat, Option("Format of the log lines of our models.", panel=_TELEMETRY)
    ] = "text"
    log_requests: Annotated[
        RequestLogging,
        Option("Log a line for each request; prompts includes its text.", panel=_TELEMETRY),
    ] = "no"
    otlp_endpoint: Annotated[
        str | None,
        Option(
            "OpenTelemetry collector that receives spans over HTTP.",
            metavar="URL",
            panel=_TELEMETRY,
        ),
    ] = None


# What only servers of some modes take: declared for those, it means nothing in another.
_MPI_OPTIONS = ("world_size", "multi_model", "disable_spawn_processes", "oversubscribe")
_CONTAINER_OPTIONS = ("image", "container_engine")
_MODES_OF = {
    # A container's ranks are started by mpirun as well, but on this machine alone.
    **dict.fromkeys(_MPI_OPTIONS, ("mpi", "container")),
    "hostfile": ("mpi",),
    **dict.fromkeys(_CONTAINER_OPTIONS, ("container", "auto")),
}


def choose_options(
    overrides: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]
) -> LaunchOptions:
    """Return the options of `overrides`, or else those declared for the mode, or else defaults.

    `declared` has the options of each model by its name. Raise `BadInput` if models of one server
    disagree, and for options of containers in another mode.
    """
    merged: dict[str, tuple[str, Any]] = {}
    modes = (
        [overrides.get("mode")]
        if overrides.get("mode")
        else [d.get("mode") for d in declared.values()]
    )
    for model, options in declared.items():
        for name, value in options.items():
            if not {*_MODES_OF.get(name, modes)} & {*modes}:
                continue
            first_model, first_value = merged.setdefault(name, (model, value))
            if name not in overrides and first_value != value:
                raise BadInput(
                    f"{first_model} and {model} cannot be served together as they were declared.",
                    why=f"launch.{name} is {first_value} for one and {value} for the other",
                    next_step=f"say it now: {_format_option(name, first_value)}",
                )
    chosen = {**{name: value for name, (_, value) in merged.items()}, **overrides}
    if chosen.get("mode") not in _MODES_OF["image"]:
        _check_no_container(chosen)
    fields = {each.name: each for each in option_fields(LaunchOptions)}
    return LaunchOptions(**{name: _convert(fields[name], value) for name, value in chosen.items()})


def _convert(field: OptionField, value: Any) -> Any:
    """Return the value of a field, which is plain data if it was declared."""
    if field.kind is Path and value is not None:
        return Path(value)
    return tuple(value) if isinstance(value, list) else value


def _format_option(name: str, value: Any) -> str:
    """Return the option as `tllm start` takes it."""
    option = name.removesuffix("_s").replace("_", "-")
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{option}"
    if name == "triton_args":
        return shlex.join(("--", *value))
    values = value if isinstance(value, list | tuple) else (value,)
    return " ".join(f"--{option} {shlex.quote(str(each))}" for each in values)


def _check_no_container(chosen: Mapping[str, Any]) -> None:
    if flags := [f"--{name.replace('_', '-')}" for name in _CONTAINER_OPTIONS if chosen.get(name)]:
        raise BadInput(
            f"{' and '.join(flags)} {'are' if len(flags) > 1 else 'is'} for servers in containers.",
            why=f"this one is to run in the mode {chosen.get('mode') or 'local'}",
            next_step="add --mode container",
        )
