"""`tllm status`: show servers and their state."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtllm_serve_cli.cli.server.startup import describe_starts, show_starts
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import served_models
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.options import JsonOption

if TYPE_CHECKING:
    from trtllm_serve_cli.launch.servers.running import RunningServer

_PART = "model "


@accepts_name(complete=served_models)
def status(
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="NAME",
            help="Show only servers that serve this model. Default: all servers.",
        ),
    ] = None,
    startup: Annotated[
        bool,
        typer.Option(
            "--startup",
            help="Show the stage durations of the model imports and of the last two server starts, "
            "and the reason for each restart.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state, ports, models, memory and GPUs of servers.

    The exit code is 0 even if no server is running. It is 3 if no model has the specified name.

    Example:  tllm status
    """
    from trtllm_serve_cli.launch.servers.running import find_servers, no_server, suggest_start
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.model.store import list_names

    describe, show = (describe_starts, show_starts) if startup else (describe_server, _show_server)
    home = find_home()
    servers = [describe(server) for server in find_servers(home, model)]
    if not servers and model is not None and model not in list_names(home):
        raise no_server(home, model)
    if as_json:
        output.show_json({"servers": servers})
        return
    if not servers:
        of_model = "" if model is None else f" for {model}"
        output.notify(f"No server is running{of_model}. Next: {suggest_start(home, model)}")
    for number, server in enumerate(servers):
        if number:
            print()
        show(server)


def describe_server(server: RunningServer) -> dict[str, Any]:
    """Return the state of a server as a JSON-compatible dict."""
    import dataclasses

    from trtllm_serve_cli.launch.servers.live_status import read_gpu_status, read_model_states
    from trtllm_serve_cli.launch.supervisor.hangs.report import REPORT_FILE
    from trtllm_serve_cli.launch.supervisor.server_processes import measure_memory

    state, endpoint, job = server.state, server.plan.endpoint, server.job
    # Do not query a server that is starting or stopping, because it may not respond.
    answers = server.is_running and server.phase == "ready"
    return {
        "models": list(server.models),
        "state": server.phase,
        "why": list(server.why),
        "uptime_s": round(time.time() - state.ready_at) if state.ready_at else None,
        "restarts": state.restarts,
        "hangs": state.hangs,
        "http": endpoint.http or None,
        "grpc": endpoint.grpc or None,
        "grpc_tls": endpoint.tls is not None,
        "metrics": endpoint.metrics or None,
        "openai": server.plan.gateway.url if server.plan.gateway else None,
        "gateway_pid": state.gateway_pid if server.is_running else None,
        "gateway_restarts": state.gateway_restarts,
        "job": {"id": job.id, "state": job.state, "reason": job.reason} if job else None,
        "host": state.host or None,
        "supervisor_pid": state.supervisor_pid or None,
        "server_pid": state.server_pid,
        "memory_bytes": measure_memory(server) if server.is_running else {},
        "triton_models": [dataclasses.asdict(each) for each in read_model_states(server)]
        if answers
        else [],
        "gpus": [dataclasses.asdict(each) for each in read_gpu_status(server)] if answers else [],
        "repository": str(server.plan.repository),
        "log": str(server.plan.log),
        "hang_report": str(server.directory / REPORT_FILE) if state.hangs and job is None else None,
        "mode": server.plan.mode,
        "model_control_mode": server.plan.model_control_mode,
        "replicas": [
            {"http": each.http, "grpc": each.grpc, "metrics": each.metrics}
            for each in server.plan.replicas
        ],
    }


def _show_server(server: dict[str, Any]) -> None:
    from trtllm_serve_cli.sources.progress import show_duration

    uptime = f", up {show_duration(server['uptime_s'])}" if server["state"] == "ready" else ""
    restarts = _describe_restarts(server["restarts"])
    print(f"{', '.join(server['models'])}: {server['state']}{uptime}{restarts}")
    for why in server["why"] if server["state"] != "ready" else ():
        print(f"  {why}")
    for rank, each in enumerate((server, *server["replicas"])):
        whose = f"rank {rank}: " if server["replicas"] else ""
        if each["http"]:
            ports = f"HTTP {each['http']}  gRPC {each['grpc']}  metrics {each['metrics']}"
            print(output.wrap(ports, first=f"  {whose}", rest="  "))
    if server["openai"]:
        print(f"  OpenAI {server['openai']}/v1{_describe_restarts(server['gateway_restarts'])}")
    if server["job"] is None:
        tls = ", gRPC with TLS" if server["grpc_tls"] else ""
        print(f"  mode {server['mode']}, model control {server['model_control_mode']}{tls}")
    elif not server["why"]:
        print(f"  Slurm job {server['job']['id']}")
    if server["job"] and server["state"] == "failed":
        print("  Next: run `tllm stop` to remove the job from this list")
    _show_parts(server)
    for gpu in server["gpus"]:
        print(f"  GPU {_describe_gpu(gpu)}")
    print(f"  repository {server['repository']}")
    print(f"  log {server['log']}")
    if server["hang_report"]:
        print(f"  hang report {server['hang_report']}")


def _describe_restarts(count: int) -> str:
    return f", {count} restart{'s' * (count != 1)}" if count else ""


def _show_parts(server: dict[str, Any]) -> None:
    """Print a table of the Triton models and other processes, with their memory usage."""
    memory = dict(server["memory_bytes"])
    total = sum(memory.values())
    rows = [
        (each["name"], each["version"], _describe_state(each), memory.pop(_PART + each["name"], 0))
        for each in server["triton_models"]
    ]
    rows += [(part, "", "", size) for part, size in sorted(memory.items())]
    if not rows:
        return
    if total:
        rows.append(("total", "", "", total))
    output.show_table(
        ("model or process", "version", "state", "memory"),
        [(*words, output.show_memory(size) if size else "") for *words, size in rows],
    )


def _describe_state(model: dict[str, Any]) -> str:
    """Return the state of a Triton model as text.

    Triton reports a model that was unloaded on request as "unavailable" with the reason "unloaded".
    In this case, return "unloaded".
    """
    if model["reason"] == "unloaded":
        return "unloaded"
    return model["state"].lower() or "not loaded"


def _describe_gpu(gpu: dict[str, Any]) -> str:
    used, total, busy = (gpu[k] for k in ("memory_used_bytes", "memory_total_bytes", "utilization"))
    memory = (
        f"  {output.show_memory(used)} of {output.show_memory(total)}" if used and total else ""
    )
    return f"{gpu['uuid']}{memory}" + ("" if busy is None else f"  {busy:.0%} busy")
