"""`tllm stop`: stop servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.options import ModelOption
from trtllm_serve_cli.cli.shared.target import ServerOption, parse_url
from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from trtllm_serve_cli.launch.servers.running import RunningServer

DrainOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0,
        max=86400,
        metavar="SECONDS",
        help="Time limit for the requests in flight. When it expires, the remaining requests "
        "are cancelled. 0 cancels all requests immediately. Slurm jobs support only 0. "
        "Default: 30.",
    ),
]


@accepts_name()
def stop(
    model: ModelOption = None,
    url: ServerOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop all servers.")] = False,
    timeout: DrainOption = None,
) -> None:
    """Finish the requests in flight, then stop a server.

    New requests are rejected immediately. The server's engine workers, Triton models and MPI ranks
    stop with it. A server or Slurm job that has already ended is removed from the output of `tllm
    status`.

    Example:  tllm stop --timeout 120
    """
    from trtllm_serve_cli.launch.servers.running import find_to_stop
    from trtllm_serve_cli.paths import find_home

    servers = find_to_stop(find_home(), model, parse_url(url), everything=everything)
    if not servers:
        output.notify("No server is running.")
    errors = [error for server in servers if (error := _stop(server, timeout)) is not None]
    for error in errors[1:]:
        output.notify(f"Error: {error}")
    if errors:
        raise errors[0]


def _stop(server: RunningServer, timeout_s: float | None) -> TllmError | None:
    """Stop a server. If the server cannot be stopped, return the error.

    The error is not raised, so that `stop` can stop the remaining servers.
    """
    try:
        stop_and_notify(server, timeout_s)
    except TllmError as error:
        return error
    return None


def stop_and_notify(server: RunningServer, timeout_s: float | None) -> None:
    """Stop `server`, and print how many requests were in flight and how many were cancelled."""
    from trtllm_serve_cli.launch.supervisor.lifecycle import stop_server

    was_over = server.is_over
    if not was_over:
        output.notify(f"Stopping {', '.join(server.models)} on {server.location} …")
    for why in stop_server(server, timeout_s, on_progress=_progress()):
        output.notify(f"  {why}")
    output.notify(f"{server.location} had already ended." if was_over else "Stopped.")


def _progress() -> Callable[[Mapping[str, int]], None]:
    """Return a function that prints the number of requests in flight when the number changes."""
    reported: Mapping[str, int] = {}

    def report(in_flight: Mapping[str, int]) -> None:
        nonlocal reported
        if in_flight and in_flight != reported:
            from trtllm_serve_cli.launch.triton.drain import format_in_flight

            reported = in_flight
            output.notify(f"  waiting for requests in flight: {format_in_flight(in_flight)}")

    return report
