"""`tllm start`: from imported models to a server that answers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from trtllm_serve_cli.cli.server.status import describe_server
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.options import DryRunOption, JsonOption

if TYPE_CHECKING:
    from trtllm_serve_cli.launch.containers.container import Container
    from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
    from trtllm_serve_cli.launch.servers.running import RunningServer


def start(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--model",
            metavar="NAME",
            help="A model, by its name in `tllm list`; several times for several in one server.",
        ),
    ] = None,
    repo: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="A model repository of `tllm import --repo DIR`, or a filled copy of upstream's; "
            "repeatable.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on. Default: 127.0.0.1; no other has a guard before it."
        ),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(min=PORT.at_least, max=PORT.at_most, help="Default: 8000.")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=PORT.at_least, max=PORT.at_most, help="Default: 8001.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=PORT.at_least, max=PORT.at_most, help="Default: 8002.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=SECONDS.at_least,
            metavar="SECONDS",
            help="How long it may take to be ready. Default: 300.",
        ),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay attached; Ctrl-C stops the server.")
    ] = False,
    log_verbose: Annotated[
        int | None,
        typer.Option(
            min=VERBOSITY.at_least, max=VERBOSITY.at_most, help="Triton's verbosity. Default: 0."
        ),
    ] = None,
    mode: Annotated[
        LaunchMode | None,
        typer.Option(
            help="Triton by itself, in a container, or mpirun's; auto: in a container where it "
            "cannot be by itself. Default: local."
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="GPUs to use: 0,1 or GPU-… or MIG-… Default: all."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Of --mode container. Default: what the engine needs."),
    ] = None,
    container_engine: Annotated[
        ContainerEngine | None,
        typer.Option(help="Of --mode container. Default: the first of these that works."),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(
            min=COUNT.at_least, metavar="N", help="Processes of --mode mpi. Default: the engine's."
        ),
    ] = None,
    multi_model: Annotated[
        bool | None,
        typer.Option(
            "--multi-model/--no-multi-model",
            help="Orchestrator mode: spawn the engines' processes. It is that for several engines.",
        ),
    ] = None,
    disable_spawn_processes: Annotated[
        bool | None,
        typer.Option(
            "--disable-spawn-processes/--no-disable-spawn-processes",
            help="Orchestrator mode with processes that mpirun starts; models need participant_ids",
        ),
    ] = None,
    oversubscribe: Annotated[
        bool | None,
        typer.Option(
            "--oversubscribe/--no-oversubscribe", help="Let mpirun start more processes than cores."
        ),
    ] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="mpirun's list of nodes; this machine comes first."),
    ] = None,
    model_control_mode: Annotated[
        ModelControlMode | None,
        typer.Option(
            help="Triton's: none; explicit, for tllm load and unload; poll, to reload what changes."
        ),
    ] = None,
    load_model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="In mode explicit, load these models alone; repeatable."),
    ] = None,
    cache_config: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help="Triton's response cache: local,size=1048576."),
    ] = None,
    trace_config: Annotated[
        list[str] | None,
        typer.Option(metavar="CONFIG", help="Triton's tracing: level=TIMESTAMPS; repeatable."),
    ] = None,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="OpenTelemetry: where a collector takes spans over HTTP."),
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="Of what our models log. Default: text.")
    ] = None,
    log_requests: Annotated[
        RequestLogging | None,
        typer.Option(help="A log line for each request; prompts: with its text. Default: no."),
    ] = None,
    grpc_server_cert: Annotated[
        Path | None, typer.Option(metavar="PEM", help="TLS for gRPC: the server's certificate.")
    ] = None,
    grpc_server_key: Annotated[
        Path | None, typer.Option(metavar="PEM", help="TLS for gRPC: the certificate's key.")
    ] = None,
    grpc_root_cert: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="TLS for gRPC: who has to vouch for clients, too."),
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    triton_args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- OPTION…]", help="Any other option of tritonserver's."),
    ] = None,
) -> None:
    """Serve imported models; returns when they answer.

    The server goes on running, watched by a supervisor; `tllm stop` ends it. Beside the own names
    of several models, NAME_ensemble, NAME_tensorrt_llm and so on are served; of one alone they are
    ensemble, tensorrt_llm and so on. What the launch section of a model's tllm.yaml says is the
    default here. What stands after -- is given to tritonserver as it is.

    Example:  tllm start -m demo -- --http-thread-count=16
    """
    from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
    from trtllm_serve_cli.paths import find_home

    given = {
        "host": host,
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        "timeout_s": timeout,
        "log_verbose": log_verbose,
        "mode": mode,
        "gpus": gpus,
        "image": image,
        "container_engine": container_engine,
        "world_size": world_size,
        "multi_model": multi_model,
        "disable_spawn_processes": disable_spawn_processes,
        "oversubscribe": oversubscribe,
        "hostfile": hostfile,
        "model_control_mode": model_control_mode,
        "load_model": load_model,
        "cache_config": cache_config,
        "trace_config": trace_config,
        "otlp_endpoint": otlp_endpoint,
        "log_format": log_format,
        "log_requests": log_requests,
        "grpc_server_cert": grpc_server_cert,
        "grpc_server_key": grpc_server_key,
        "grpc_root_cert": grpc_root_cert,
        "triton_args": triton_args,
    }
    given = {
        name: value.absolute() if isinstance(value, Path) else value
        for name, value in given.items()
        if value not in (None, [])
    }
    home = find_home()
    plan = plan_for_this_machine(home, model or (), given, repositories=repo or ())
    if dry_run:
        if as_json:
            output.show_json(plan.as_dict())
        else:
            print(plan.describe())
        return
    if repo:
        from trtllm_serve_cli.repository.settings.engine_references import remember_use

        for each in repo:
            remember_use(home, each.absolute())
    prepare_and_notify(plan)
    if foreground:
        _serve_attached(plan)
        return
    launch_and_notify(plan, as_json=as_json)


def prepare_and_notify(plan: LaunchPlan) -> None:
    """Tell what is to be known of `plan` before it is launched, and fetch what it needs."""
    if plan.reason:
        output.notify(plan.reason)
    if plan.host not in ("127.0.0.1", "localhost"):
        output.notify(
            f"Whoever reaches {plan.host} can use this server: nothing stands guard before it."
        )
    if plan.container is not None:
        _fetch_image(plan.container)


def launch_and_notify(plan: LaunchPlan, *, as_json: bool = False) -> None:
    """Start the server of `plan`, and tell how it goes and where it answers."""
    from trtllm_serve_cli.launch.supervisor.lifecycle import launch

    started_s = time.monotonic()
    with _progress() as on_progress:
        server = launch(plan, on_progress=on_progress)
    _report_ready(server, time.monotonic() - started_s, as_json=as_json)


def _fetch_image(container: Container) -> None:
    from trtllm_serve_cli.launch.containers.container_engine import is_image_here, pull_image

    if is_image_here(container):
        return
    output.notify(f"Fetching {container.image} …")
    terminal = os.get_terminal_size(sys.stderr.fileno()) if sys.stderr.isatty() else None
    pull_image(container, _write_stderr, terminal)


def _write_stderr(text: bytes) -> None:
    sys.stderr.buffer.write(text)
    sys.stderr.flush()


def _serve_attached(plan: LaunchPlan) -> None:
    from trtllm_serve_cli.launch.supervisor.lifecycle import run_in_foreground
    from trtllm_serve_cli.processes import ended_by_signals

    output.notify(f"Starting {', '.join(plan.models)}; its log is {plan.log}")

    def on_ready() -> None:
        output.notify(f"Ready on http://{plan.endpoint.http}; Ctrl-C stops it.")

    # SIGTERM, too, ends the server in order before it ends us.
    with ended_by_signals():
        run_in_foreground(plan, on_ready=on_ready)


def _report_ready(server: RunningServer, took_s: float, *, as_json: bool) -> None:
    endpoint, name = server.endpoint, server.models[0]
    are_several = len(server.models) > 1
    if as_json:
        output.show_json(describe_server(server) | {"took_s": round(took_s, 2)})
        return
    names, verb = " and ".join(server.models), "are" if are_several else "is"
    output.notify(f"{names} {verb} ready after {took_s:.1f} s.")
    for each in server.plan.text_models:
        output.notify(f"  HTTP     http://{endpoint.http}/v2/models/{each}/generate")
    output.notify(f"  gRPC     {endpoint.grpc}")
    output.notify(f"  metrics  http://{endpoint.metrics}/metrics")
    output.notify(f"  log      {server.plan.log}")
    chosen = f" -m {name}" if are_several else ""
    output.notify(f'Next: tllm infer{chosen} "What is ML?"')


@contextmanager
def _progress() -> Iterator[Callable[[Sequence[str]], None]]:
    """Tells which models are loading: a spinner on a terminal, a line per change elsewhere."""
    if sys.stderr.isatty():
        from rich.text import Text

        with output.console(stderr=True).status("Starting Triton …") as spinner:
            yield lambda loading: spinner.update(Text(_loading_line(loading)))
        return
    told: list[str] = []

    def tell(loading: Sequence[str]) -> None:
        line = _loading_line(loading)
        if line not in told:
            told.append(line)
            output.notify(line)

    yield tell


def _loading_line(loading: Sequence[str]) -> str:
    return f"Loading {', '.join(loading)} …" if loading else "Generating a first token …"
