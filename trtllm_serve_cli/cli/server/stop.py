"""`tllm stop`: stop servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import served_models
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.options import JsonOption, ServedModelOption
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
        help="Grace period for requests in flight, in seconds. Requests that do not finish in "
        "time are cancelled. 0 cancels all requests immediately. Slurm jobs support only 0. "
        "Default: 30, or 0 for Slurm jobs.",
    ),
]


@accepts_name(complete=served_models)
def stop(
    model: ServedModelOption = None,
    url: ServerOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop all servers.")] = False,
    timeout: DrainOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a server after its requests in flight have finished.

    New requests are rejected immediately. The server's engine workers, Triton models and MPI ranks
    are also stopped. If a server or Slurm job has already ended, it is removed from the output of
    `tllm status`.

    Example:  tllm stop --timeout 120
    """
    from trtllm_serve_cli.launch.servers.running import find_to_stop
    from trtllm_serve_cli.paths import find_home

    servers = find_to_stop(find_home(), model, parse_url(url), everything=everything)
    if not servers:
        output.notify("No server is running.")
    stopped = [_stop(server, timeout) for server in servers]
    if as_json:
        output.show_json({"servers": [each.to_json() for each in stopped]})
    errors = [each.error for each in stopped if each.error is not None]
    for error in errors[1:]:
        output.notify(f"Error: {error}")
    if errors:
        raise errors[0]


@dataclass(frozen=True, slots=True)
class _Stopped:
    """The result of stopping one server.

    `had_ended` is true if the server was no longer running when the command ran. `why` contains
    messages about cancelled requests.
    """

    server: RunningServer
    had_ended: bool
    why: tuple[str, ...] = ()
    error: TllmError | None = None

    def to_json(self) -> dict[str, Any]:
        server = self.server
        return {
            "models": list(server.models),
            "http": server.plan.endpoint.http or None,
            "job": server.job.id if server.job else None,
            "had_ended": self.had_ended,
            "why": list(self.why),
            "error": str(self.error) if self.error else None,
        }


def _stop(server: RunningServer, timeout_s: float | None) -> _Stopped:
    """Stop a server and return the result.

    Return errors in the result instead of raising them, so that `stop` can stop the other servers.
    """
    had_ended = server.is_over
    try:
        return _Stopped(server, had_ended, why=stop_and_notify(server, timeout_s))
    except TllmError as error:
        return _Stopped(server, had_ended, error=error)


def stop_and_notify(
    server: RunningServer, timeout_s: float | None, *, is_restart: bool = False
) -> tuple[str, ...]:
    """Stop `server`, and print and return the messages about cancelled requests.

    `is_restart` is true if the caller will start the server again. After Ctrl-C, print how to
    continue, and exit.
    """
    from trtllm_serve_cli.launch.supervisor.stopping import stop_server

    was_over = server.is_over
    if not was_over:
        output.notify(f"Stopping {', '.join(server.models)} on {server.location} …")
    try:
        messages = stop_server(server, timeout_s, on_progress=_progress(), is_restart=is_restart)
    except KeyboardInterrupt:
        output.notify(
            f"Interrupted. {server.location} rejects new requests and stops as soon as its "
            f"requests in flight have finished.\nNext: run `tllm stop -u {server.location}` to "
            "wait, or add --timeout 0 to cancel the requests"
        )
        raise typer.Exit(INTERRUPTED) from None
    for why in messages:
        output.notify(f"  {why}")
    output.notify(f"{server.location} had already ended." if was_over else "Stopped.")
    return messages


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
