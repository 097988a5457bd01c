"""`tllm stop`: the end of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli.shared import output
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
        help="How long requests in flight may take to end; 0 cuts them off, as Slurm does. "
        "Default: 30.",
    ),
]


def stop(
    model: ModelOption = None,
    url: ServerOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop every server.")] = False,
    timeout: DrainOption = None,
) -> None:
    """Stop a server, after the requests in flight.

    It takes no new requests from then on. What it has started ends with it: workers and the
    processes of models and ranks. A Slurm job that has ended by itself goes off the list of
    `tllm status`.

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
    """Gives what kept it from being stopped, so that the others are."""
    try:
        stop_and_notify(server, timeout_s)
    except TllmError as error:
        return error
    return None


def stop_and_notify(server: RunningServer, timeout_s: float | None) -> None:
    """Stop `server`, and report what it waits for and what it cut off."""
    from trtllm_serve_cli.launch.supervisor.lifecycle import stop_server

    was_over = server.is_over
    if not was_over:
        output.notify(f"Stopping {', '.join(server.models)} on {server.location} …")
    for why in stop_server(server, timeout_s, on_progress=_progress()):
        output.notify(f"  {why}")
    output.notify(f"{server.location} had ended already." if was_over else "Stopped.")


def _progress() -> Callable[[Mapping[str, int]], None]:
    """Says which requests are waited for, whenever that changes."""
    reported: Mapping[str, int] = {}

    def report(in_flight: Mapping[str, int]) -> None:
        nonlocal reported
        if in_flight and in_flight != reported:
            from trtllm_serve_cli.launch.triton.drain import format_in_flight

            reported = in_flight
            output.notify(f"  waiting for requests in flight: {format_in_flight(in_flight)}")

    return report
