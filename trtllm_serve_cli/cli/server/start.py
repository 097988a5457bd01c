"""`tllm start`: start a server for imported models."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtllm_serve_cli.cli.server.other_runtimes import notify_other_runtimes
from trtllm_serve_cli.cli.server.startup import describe_starts, summarize_last_start
from trtllm_serve_cli.cli.server.status import describe_server
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import completes, gpu_indices, imported_models
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED
from trtllm_serve_cli.cli.shared.openai_options import BASE_URL_VARIABLE
from trtllm_serve_cli.cli.shared.option_signature import OptionValues, takes_options
from trtllm_serve_cli.cli.shared.options import DryRunOption, JsonOption
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.option_fields import option_fields

if TYPE_CHECKING:
    from trtllm_serve_cli.containers.container import Container
    from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
    from trtllm_serve_cli.launch.servers.running import RunningServer
    from trtllm_serve_cli.paths import Home


@completes(model=imported_models, launch_triton_args=imported_models, launch_gpus=gpu_indices)
@takes_options(launch=option_fields(LaunchOptions))
def start(
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--model",
            metavar="NAME",
            help="Model to serve, as shown by `tllm list`. Repeatable. Default: the only imported "
            "model, unless --repo is set.",
        ),
    ] = None,
    repo: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Model repository folder to serve: a repository from `tllm import --repo`, or a "
            "copy of NVIDIA's templates with all variables filled in. Repeatable.",
        ),
    ] = None,
    launch: OptionValues,
    foreground: Annotated[
        bool,
        typer.Option(
            "--foreground", help="Run the server in the foreground. Press Ctrl-C to stop."
        ),
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a server for imported models and wait until the server has generated a token.

    A supervisor keeps the server running until `tllm stop`. A server with one model provides its
    Triton models as ensemble, tensorrt_llm and so on. A server with several models provides them as
    NAME_ensemble, NAME_tensorrt_llm and so on. The `launch` section of a model's tllm.yaml
    overrides the defaults of these options. Arguments after -- are passed to tritonserver.

    Example:  tllm start demo -- --http-thread-count=16
    """
    from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
    from trtllm_serve_cli.launch.triton.passthrough_args import split_names
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    names, launch["triton_args"] = split_names(launch.get("triton_args", ()))
    if not launch["triton_args"]:
        del launch["triton_args"]
    names = (*names, *(each for each in model or () if each not in names))
    plan = plan_for_this_machine(home, names, launch, repositories=repo or (), is_dry_run=dry_run)
    if dry_run:
        if as_json:
            output.show_json(plan.as_dict())
        else:
            print(plan.describe())
        return
    if repo:
        from trtllm_serve_cli.repository.settings.engine_references import record_references

        for each in repo:
            record_references(home, each.absolute())
    _notify_served(home, plan)
    prepare_and_notify(plan)
    if foreground:
        _serve_attached(plan)
        return
    launch_and_notify(plan, as_json=as_json)


def _notify_served(home: Home, plan: LaunchPlan) -> None:
    """Print each other running server that already serves a model of `plan`."""
    from trtllm_serve_cli.launch.servers.running import find_servers

    for name in plan.models:
        for server in find_servers(home, name):
            if server.is_running and server.directory != plan.directory:
                output.notify(f"A running server already serves {name} on {server.location}.")


def prepare_and_notify(plan: LaunchPlan) -> None:
    """Print the reason for the launch mode, print warnings, and fetch a missing container image.

    Warn if a model has the runtime of another version, if the server binds an address other than
    localhost, or if the gateway accepts or rejects all clients.
    """
    from trtllm_serve_cli.launch.planning.gateway_plan import describe_missing_keys

    if plan.reason:
        output.notify(plan.reason)
    notify_other_runtimes(plan.repositories)
    if plan.host != "127.0.0.1":
        output.notify(
            f"Triton listens on {plan.host} without authentication, so every client that can "
            "connect can use the server."
        )
    if plan.gateway is not None and (warning := describe_missing_keys(plan.gateway)):
        output.notify(warning)
    if plan.container is not None:
        _fetch_image(plan.container)


def launch_and_notify(
    plan: LaunchPlan, *, as_json: bool = False, suggests_prompt: bool = True
) -> None:
    """Launch the server in `plan`, print its progress, and print its addresses when it is ready.

    If `suggests_prompt` is set, also print commands that send a prompt. If `as_json` is set, print
    the server's state as JSON instead of the addresses and commands. After Ctrl-C, print that the
    server was stopped, and exit.
    """
    from trtllm_serve_cli.launch.supervisor.lifecycle import launch
    from trtllm_serve_cli.processes import exit_on_signals

    started_s = time.monotonic()
    try:
        # SIGTERM also becomes an exception, so that a terminated command leaves no server running.
        with exit_on_signals(), show_loading(plan) as on_progress:
            server = launch(plan, on_progress=on_progress)
    except KeyboardInterrupt:
        output.notify("Interrupted. The server was stopped.")
        raise typer.Exit(INTERRUPTED) from None
    _report_ready(
        server,
        time.monotonic() - started_s,
        as_json=as_json,
        suggests_prompt=suggests_prompt,
    )


def _fetch_image(container: Container) -> None:
    from trtllm_serve_cli.containers.container_engine import is_image_here, pull_image

    if is_image_here(container):
        return
    output.notify(f"Fetching {container.image} …")
    terminal = os.get_terminal_size(sys.stderr.fileno()) if sys.stderr.isatty() else None
    pull_image(container, _write_stderr, terminal)


def _write_stderr(text: bytes) -> None:
    sys.stderr.buffer.write(text)
    sys.stderr.flush()


def _serve_attached(plan: LaunchPlan) -> None:
    from trtllm_serve_cli.launch.servers.running import read_server
    from trtllm_serve_cli.launch.supervisor.lifecycle import run_in_foreground
    from trtllm_serve_cli.processes import exit_on_signals

    output.notify(f"Starting {', '.join(plan.models)}; log: {plan.log}")
    started_s = time.monotonic()

    def on_ready() -> None:
        _notify_ready(read_server(plan.directory), time.monotonic() - started_s)
        output.notify("Ctrl-C stops the server.")

    # Turn SIGTERM into an exception, so that the server stops cleanly before this process ends.
    with exit_on_signals():
        run_in_foreground(plan, on_ready=on_ready)


def _report_ready(
    server: RunningServer, took_s: float, *, as_json: bool, suggests_prompt: bool
) -> None:
    if as_json:
        start = _describe_last_start(server)
        output.show_json(
            describe_server(server)
            | {"took_s": round(took_s, 2), "stages": start["stages"], "problems": start["problems"]}
        )
        return
    _notify_ready(server, took_s, suggests_prompt=suggests_prompt)


def _notify_ready(server: RunningServer, took_s: float, *, suggests_prompt: bool = True) -> None:
    names, verb = " and ".join(server.models), "are" if len(server.models) > 1 else "is"
    parts = summarize_last_start(server)
    output.notify(f"{names} {verb} ready after {took_s:.1f} s{parts and f' ({parts})'}.")
    for problem in _describe_last_start(server)["problems"]:
        output.notify(problem)
    notify_addresses(server)
    if suggests_prompt:
        notify_next_prompt(server)


def _describe_last_start(server: RunningServer) -> dict[str, Any]:
    starts = describe_starts(server)["starts"]
    return dict(starts[0]) if starts else {"stages": [], "problems": []}


def notify_addresses(server: RunningServer) -> None:
    """Print the addresses of the server's interfaces."""
    endpoint = server.endpoint
    for each in server.plan.text_models:
        output.notify(f"  HTTP     http://{endpoint.http}/v2/models/{each}/generate")
    output.notify(f"  gRPC     {endpoint.grpc}")
    output.notify(f"  metrics  http://{endpoint.metrics}/metrics")
    if (gateway := server.plan.gateway) is not None:
        output.notify(f"  OpenAI   {gateway.url}/v1")
        output.notify(f"  chat     {gateway.url}")
    output.notify(f"  log      {server.plan.log}")


def notify_next_prompt(server: RunningServer) -> None:
    """Print commands that send a prompt to the server."""
    from trtllm_serve_cli.launch.servers.running import find_servers
    from trtllm_serve_cli.paths import find_home

    running = [each for each in find_servers(find_home(), None) if each.is_running]
    first, *others = suggest_prompts(server, running)
    output.notify(f"Next: {first}")
    for each in others:
        output.notify(f"  or: {each}")


def suggest_prompts(server: RunningServer, running: Sequence[RunningServer]) -> list[str]:
    """Return the commands that send a prompt over gRPC and to the OpenAI-compatible API.

    `running` contains all running servers. The command for the OpenAI-compatible API is omitted in
    these cases:
    - The server does not have an OpenAI-compatible API.
    - The API uses TLS, because the certificate may not be valid for the local address.
    - The model computes embeddings.
    """
    name = server.models[0]
    chosen = f" -m {name}" if len(server.models) > 1 else _select(server, running)
    commands = [f'tllm infer{chosen} "What is ML?"']
    gateway = server.plan.gateway
    if gateway is not None and gateway.tls_certificate is None and not _is_embedding(server):
        urls = [each.plan.gateway.url for each in running if each.plan.gateway is not None]
        is_default = urls == [gateway.url] and BASE_URL_VARIABLE not in os.environ
        chosen = "" if is_default else f" -u {gateway.url}"
        chosen += f" -m {name}" if len(server.models) > 1 else ""
        commands.append(f'tllm infer -i openai{chosen} "What is ML?"')
    return commands


def _is_embedding(server: RunningServer) -> bool:
    from trtllm_serve_cli.repository.model.model_repository import open_repository

    try:
        return open_repository(server.plan.repositories[0]).layout == "embedding"
    except (LookupError, TllmError):
        return False


def _select(server: RunningServer, running: Sequence[RunningServer]) -> str:
    """Return the options that select the server, or "" if no other server is running."""
    if len(running) <= 1:
        return ""
    name = server.models[0]
    if sum(name in each.models for each in running) == 1:
        return f" -m {name}"
    return f" -u {server.endpoint.grpc} -m {server.text_model()}"


@contextmanager
def show_loading(plan: LaunchPlan) -> Iterator[Callable[[Sequence[str]], None]]:
    """Yield a function that shows which models are loading.

    On a terminal, the function updates a spinner. Otherwise, it prints a line for each change.
    """
    if sys.stderr.isatty():
        from rich.text import Text

        with output.console(stderr=True).status("Starting Triton …") as spinner:
            yield lambda loading: spinner.update(Text(_loading_line(plan, loading)))
        return
    waiting: tuple[str, ...] | None = None

    def report(loading: Sequence[str]) -> None:
        nonlocal waiting
        before, waiting = waiting, tuple(loading)
        loaded = [model for model in before or () if model not in loading]
        if loaded and loading:
            left = f"{len(loading)} model{'s' * (len(loading) != 1)} still loading"
            output.notify(f"Loaded {', '.join(loaded)} ({left})")
        elif before is None or set(before) != set(loading):
            output.notify(_loading_line(plan, loading))

    yield report


def _loading_line(plan: LaunchPlan, loading: Sequence[str]) -> str:
    if loading:
        return f"Loading {', '.join(loading)} …"
    return f"Generating the first token{' and warming up' if plan.warmup else ''} …"
