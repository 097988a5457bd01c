"""`tllm start`, `stop`, `status` and `logs`: the life of a server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtllm_serve_cli.choices import LaunchMode
from trtllm_serve_cli.cli import output
from trtllm_serve_cli.cli.options import DryRunOption, JsonOption, ModelOption
from trtllm_serve_cli.errors import NoServer, TllmError

if TYPE_CHECKING:
    from trtllm_serve_cli.launch import LaunchPlan, RunningServer

ServerOption = Annotated[
    str | None,
    typer.Option(
        "-u", "--url", metavar="HOST:PORT", help="The server, by an address in `tllm status`."
    ),
]


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
            metavar="DIR", help="A model repository of `tllm import --repo DIR`; repeatable."
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on. Default: 127.0.0.1; no other has a guard before it."
        ),
    ] = None,
    http_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: 8000.")] = None,
    grpc_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: 8001.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Default: 8002.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="SECONDS", help="How long it may take to be ready. Default: 300."
        ),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay attached; Ctrl-C stops the server.")
    ] = False,
    log_verbose: Annotated[
        int | None, typer.Option(min=0, max=3, help="Triton's verbosity. Default: 0.")
    ] = None,
    mode: Annotated[
        LaunchMode | None,
        typer.Option(help="Triton by itself, or mpirun's. Default: local."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="GPUs to use: 0,1 or GPU-… or MIG-… Default: all."),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Processes of --mode mpi. Default: the engine's."),
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
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Serve imported models; returns when they answer.

    The server goes on running, watched by a supervisor; `tllm stop` ends it. Beside the own names
    of several models, NAME_ensemble, NAME_tensorrt_llm and so on are served; of one alone they are
    ensemble, tensorrt_llm and so on. What the launch section of a model's tllm.yaml says is the
    default here.

    Example:  tllm start -m demo
    """
    from trtllm_serve_cli import launch
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
        "world_size": world_size,
        "multi_model": multi_model,
        "disable_spawn_processes": disable_spawn_processes,
        "oversubscribe": oversubscribe,
        "hostfile": hostfile.absolute() if hostfile is not None else None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    home = find_home()
    plan = launch.plan_for_this_machine(home, model or (), given, repositories=repo or ())
    if dry_run:
        if as_json:
            output.show_json(plan.as_dict())
        else:
            print(plan.describe())
        return
    if plan.host not in ("127.0.0.1", "localhost"):
        output.say(
            f"Whoever reaches {plan.host} can use this server: nothing stands guard before it."
        )
    if repo:
        from trtllm_serve_cli.repository.uses import remember_use

        for each in repo:
            remember_use(home, each.absolute())
    if foreground:
        _serve_attached(plan)
        return
    started_s = time.monotonic()
    with _progress() as on_progress:
        server = launch.launch(plan, on_progress=on_progress)
    _report_ready(server, time.monotonic() - started_s, as_json=as_json)


def stop(
    model: ModelOption = None,
    url: ServerOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop every server.")] = False,
) -> None:
    """Stop a server, after the requests in flight.

    A Slurm job that has ended by itself goes off the list of `tllm status`.

    Example:  tllm stop
    """
    from trtllm_serve_cli import launch
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    if everything:
        servers = [
            server for server in launch.list_servers(home) if server.job or not server.is_over
        ]
    else:
        servers = launch.find_to_stop(home, model, _parse_url(url))
    if not servers:
        output.say("No server is running.")
    errors = [error for server in servers if (error := _stop(server)) is not None]
    for error in errors[1:]:
        output.say(f"Error: {error}")
    if errors:
        raise errors[0]


def _stop(server: RunningServer) -> TllmError | None:
    """Gives what kept it from being stopped, so that the others are."""
    from trtllm_serve_cli import launch

    was_over = server.is_over
    if not was_over:
        output.say(f"Stopping {', '.join(server.models)} on {server.place} …")
    try:
        launch.stop_server(server)
    except TllmError as error:
        return error
    output.say(f"{server.place} had ended already." if was_over else "Stopped.")
    return None


def status(as_json: JsonOption = False) -> None:
    """Show the servers: state, ports, memory.

    Example:  tllm status
    """
    from trtllm_serve_cli import launch
    from trtllm_serve_cli.paths import find_home

    servers = [_describe(server) for server in launch.list_servers(find_home())]
    if as_json:
        output.show_json({"servers": servers})
        return
    if not servers:
        output.say("No server is running. Next: tllm start")
    for server in servers:
        _show_server(server)


def logs(
    model: ModelOption = None,
    url: ServerOption = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the log grows.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many last lines.")] = 100,
) -> None:
    """Print the end of a server's log, also of one that died.

    Example:  tllm logs -f
    """
    from trtllm_serve_cli import launch, processes
    from trtllm_serve_cli.paths import find_home

    chosen = launch.find_servers(find_home(), model, _parse_url(url))
    if not chosen:
        if model is None and url is None:
            raise NoServer("No server has been started.", next_step="tllm start")
        raise NoServer(
            f"There is no server {f'for {model}' if model else f'on {url}'}.",
            next_step="`tllm status` shows the servers",
        )
    if len(chosen) > 1:
        raise NoServer(
            f"There are {len(chosen)} servers.",
            why=f"they serve {launch.name_servers(chosen)}",
            next_step="choose one with -m NAME, or its address with -u HOST:PORT",
        )
    log = chosen[0].plan.log
    output.say(f"{log}:")
    for line in processes.last_lines(log, lines) if lines else ():
        print(line)
    if follow:
        for line in processes.follow_lines(log):
            print(line, flush=True)


def _parse_url(url: str | None) -> str | None:
    if url is None:
        return None
    from trtllm_serve_cli.client import parse_address

    return parse_address(url).replace("localhost", "127.0.0.1")


def _serve_attached(plan: LaunchPlan) -> None:
    from trtllm_serve_cli import launch

    output.say(f"Starting {', '.join(plan.models)}; its log is {plan.log}")

    def on_ready() -> None:
        output.say(f"Ready on http://{plan.endpoint.http}; Ctrl-C stops it.")

    launch.run_in_foreground(plan, on_ready=on_ready)


def _report_ready(server: RunningServer, took_s: float, *, as_json: bool) -> None:
    endpoint, name = server.endpoint, server.models[0]
    are_several = len(server.models) > 1
    if as_json:
        output.show_json(_describe(server) | {"took_s": round(took_s, 2)})
        return
    names, verb = " and ".join(server.models), "are" if are_several else "is"
    output.say(f"{names} {verb} ready after {took_s:.1f} s.")
    for each in server.plan.text_models:
        output.say(f"  HTTP     http://{endpoint.http}/v2/models/{each}/generate")
    output.say(f"  gRPC     {endpoint.grpc}")
    output.say(f"  metrics  http://{endpoint.metrics}/metrics")
    output.say(f"  log      {server.plan.log}")
    chosen = f" -m {name}" if are_several else ""
    output.say(f'Next: tllm infer{chosen} "What is ML?"')


def _describe(server: RunningServer) -> dict[str, Any]:
    from trtllm_serve_cli import launch

    state, endpoint, job = server.state, server.plan.endpoint, server.job
    return {
        "models": list(server.models),
        "state": server.phase,
        "why": list(state.why),
        "uptime_s": round(time.time() - state.ready_at) if state.ready_at else None,
        "restarts": state.restarts,
        "http": endpoint.http or None,
        "grpc": endpoint.grpc or None,
        "metrics": endpoint.metrics or None,
        "job": {"id": job.id, "state": job.state, "reason": job.reason} if job else None,
        "supervisor_pid": state.supervisor_pid or None,
        "server_pid": state.server_pid,
        "memory_bytes": launch.measure_memory(server) if server.is_running else {},
        "repository": str(server.plan.repository),
        "log": str(server.plan.log),
        "mode": server.plan.mode,
        "replicas": [
            {"http": each.http, "grpc": each.grpc, "metrics": each.metrics}
            for each in server.plan.replicas
        ],
    }


def _show_server(server: dict[str, Any]) -> None:
    from trtllm_serve_cli.sources import show_size

    uptime = f", up {_duration(server['uptime_s'])}" if server["state"] == "ready" else ""
    count = server["restarts"]
    restarts = f", {count} restart{'s' * (count != 1)}" if count else ""
    print(f"{', '.join(server['models'])}: {server['state']}{uptime}{restarts}")
    for why in server["why"] if server["state"] != "ready" else ():
        print(f"  {why}")
    for rank, each in enumerate((server, *server["replicas"])):
        whose = f"rank {rank}: " if server["replicas"] else ""
        if each["http"]:
            print(f"  {whose}HTTP {each['http']}  gRPC {each['grpc']}  metrics {each['metrics']}")
    if server["job"] and not server["why"]:
        print(f"  Slurm job {server['job']['id']}")
    if server["job"] and server["state"] == "failed":
        print("  `tllm stop` takes it off this list")
    if memory := server["memory_bytes"]:
        total = show_size(sum(memory.values()))
        print(f"  memory {total} in all:")
        width = max(24, *map(len, memory))
        for part, size in sorted(memory.items(), key=lambda item: -item[1]):
            print(f"    {part:<{width}} {show_size(size):>10}")
    print(f"  repository {server['repository']}")
    print(f"  log {server['log']}")


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


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
            output.say(line)

    yield tell


def _loading_line(loading: Sequence[str]) -> str:
    return f"Loading {', '.join(loading)} …" if loading else "Generating a first token …"
