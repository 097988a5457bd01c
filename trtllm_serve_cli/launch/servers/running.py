"""Find the servers that tllm has started."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.errors import NoServer
from trtllm_serve_cli.launch.logs.triton_log import explain_log
from trtllm_serve_cli.launch.planning.launch_plan import NO_ENDPOINT, LaunchPlan
from trtllm_serve_cli.launch.server_state import (
    JOB_FILE,
    PLAN_FILE,
    STATE_FILE,
    ServerState,
    read_state,
)
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.processes import last_lines
from trtllm_serve_cli.repository.model.store import is_imported, list_names, unknown_model
from trtllm_serve_cli.runtime.watch.processes import is_stopped

if TYPE_CHECKING:
    from trtllm_serve_cli.launch.clusters.slurm_job import SlurmJob


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that tllm has started, with its plan and the state that was last read.

    The server may have ended since then. `job` is set for a Slurm job, which has no supervisor.
    """

    directory: Path
    plan: LaunchPlan
    state: ServerState
    job: SlurmJob | None = None

    @property
    def endpoint(self) -> Endpoint:
        """The server's endpoint. Raise `NoServer` if a Slurm job has no address yet."""
        if self.plan.endpoint == NO_ENDPOINT:
            raise NoServer(
                f"The server for {', '.join(self.models)} has no address yet.",
                why="; ".join(self.state.why) or f"the server is {self.phase}",
                next_step="run `tllm status` to check whether the server is ready",
            )
        return self.plan.endpoint

    @property
    def location(self) -> str:
        """The server's HTTP address, or "Slurm job N" for Slurm job N."""
        if self.job is not None:
            return f"Slurm job {self.job.id}"
        return self.plan.endpoint.http

    @property
    def restart_command(self) -> str:
        """The command that starts the server again.

        For a Slurm job, the command does not include the job's original options.
        """
        if self.job is not None:
            return f"tllm deploy slurm -m {self.models[0]} --submit"
        return f"tllm restart -u {self.location}"

    @property
    def stop_command(self) -> str:
        """The command that stops the server, also if other servers serve the same models."""
        if self.job is not None:
            return f"tllm stop -m {self.models[0]}"
        return f"tllm stop -u {self.location}"

    @property
    def models(self) -> tuple[str, ...]:
        return self.plan.models

    def text_model(self, model: str | None = None) -> str:
        """Return the Triton model that receives the requests for the imported model `model`.

        By default, use the server's first model.
        """
        served = dict(zip(self.plan.models, self.plan.text_models, strict=True))
        return served[model or self.plan.models[0]]

    @property
    def is_running(self) -> bool:
        if self.job is not None:
            return self.job.is_alive
        return self.state.is_supervised

    @property
    def is_over(self) -> bool:
        """True if the server is known to have ended.

        `is_running` and `is_over` are both false if the state of a Slurm job or of a server on
        another machine is unknown.
        """
        if self.job is not None:
            return self.job.is_over
        return not self.is_running and not self.state.is_elsewhere

    @property
    def phase(self) -> str:
        """The current phase, or "died" if the supervisor ended without recording a final phase.

        If the supervisor is suspended, the phase is "unresponsive", because the supervisor cannot
        restart the server. If the server may be running on another machine, the phase is "unknown".
        """
        if self._has_stopped_supervisor:
            return "unresponsive"
        if self.job is not None or self.is_running or self.state.phase in ("failed", "stopped"):
            return self.state.phase
        return "unknown" if self.state.is_elsewhere else "died"

    @property
    def _has_stopped_supervisor(self) -> bool:
        return self.job is None and self.is_running and is_stopped(self.state.supervisor_pid)

    @property
    def why(self) -> tuple[str, ...]:
        """The lines that explain the phase.

        If the supervisor was killed, the lines include the causes from the server's log.
        """
        if self.state.is_elsewhere:
            where = "that container" if self.state.is_in_other_container else "that machine"
            return (
                f"the server was started {self.state.place}, and only {where} can determine "
                "the server's state",
            )
        if self._has_stopped_supervisor:
            pid = self.state.supervisor_pid
            return (
                f"the server's supervisor is suspended; run `kill -CONT {pid}` to resume it",
                *self.state.why,
            )
        if self.phase != "died":
            return self.state.why
        if not self.state.is_from_this_boot:
            return ("the server ended when this machine was rebooted",)
        log_lines = explain_log(last_lines(self.plan.log, 400))
        return ("the server's supervisor was killed", *log_lines)


def read_server(directory: Path) -> RunningServer:
    """Return the server in `directory`. Raise `NoServer` if the folder contains no server."""
    if (directory / JOB_FILE).exists():
        # Import the module only for a job, because it also imports the planning of jobs.
        from trtllm_serve_cli.launch.clusters.slurm_job import read_job

        if (found := read_job(directory)) is not None:
            return RunningServer(directory, *found)
    state, plan = read_state(directory), read_plan(directory)
    if state is None or plan is None:
        raise NoServer(
            f"{directory} does not contain a server.",
            why=f"{STATE_FILE if state is None else PLAN_FILE} is missing or cannot be read",
            next_step="run `tllm status` to list the servers",
        )
    return RunningServer(directory, plan, state)


def read_plan(directory: Path) -> LaunchPlan | None:
    """Return the plan of the server in `directory`, or None if it is missing or invalid."""
    try:
        return LaunchPlan.from_json((directory / PLAN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def list_servers(home: Home) -> list[RunningServer]:
    """List all servers except stopped servers. The list includes failed servers and ended jobs.

    Supervised servers come first, sorted by HTTP port. Slurm jobs follow.
    """
    servers = [server for server in _read_servers(home) if server.phase != "stopped"]
    return sorted(servers, key=_order)


def _read_servers(home: Home) -> Iterator[RunningServer]:
    """Yield all servers, including stopped servers, in any order."""
    for directory in home.servers.iterdir() if home.servers.exists() else ():
        with contextlib.suppress(NoServer):
            yield read_server(directory)


def _order(server: RunningServer) -> tuple[int, str]:
    port = server.directory.name
    return (int(port), "") if port.isdecimal() else (1 << 16, port)


def find_servers(home: Home, model: str | None, address: str | None = None) -> list[RunningServer]:
    """List the servers that serve `model` and listen on `address`.

    `address` is an HTTP, gRPC or metrics address. If an argument is None, it matches all servers.
    """
    return [server for server in list_servers(home) if _matches(server, model, address)]


def find_serving(home: Home, repository: Path, name: str) -> list[RunningServer]:
    """List the servers that serve the model `name` in the folder `repository`."""
    folder, is_own = repository.resolve(), is_imported(repository, name)
    return [
        server
        for server in list_servers(home)
        if folder in (path.resolve() for path in server.plan.repositories)
        or (is_own and name in server.models)
    ]


def _matches(server: RunningServer, model: str | None, address: str | None) -> bool:
    return (model is None or model in server.models) and (
        address is None or address in _addresses(server)
    )


def _addresses(server: RunningServer) -> tuple[str, ...]:
    plan = server.plan
    every = (plan.endpoint, *plan.replicas)
    return tuple(address for each in every for address in (each.http, each.grpc, each.metrics))


def _describe_servers(servers: Iterable[RunningServer]) -> str:
    """Return the models and the location of each server as a comma-separated string."""
    return ", ".join(f"{' and '.join(each.models)} on {each.location}" for each in servers)


def find_running(home: Home, model: str | None, address: str | None = None) -> RunningServer:
    """Return the only running server that serves `model` and listens on `address`, if set.

    Raise `NoServer` if no running server matches or if several running servers match. If the state
    of a matching server is unknown, the error explains why.
    """
    servers = find_servers(home, model, address)
    running = [server for server in servers if server.is_running]
    if len(running) == 1:
        return running[0]
    if running:
        raise _ambiguous(running)
    if unknown := [server for server in servers if not server.is_over]:
        raise NoServer(
            f"The state of the server for {', '.join(unknown[0].models)} is unknown.",
            why="; ".join(unknown[0].why),
            next_step=_how_to_check(unknown[0]),
        )
    if servers:
        died = servers[0]
        raise NoServer(
            f"The server for {', '.join(died.models)} is no longer running.",
            why="; ".join(died.why) or "no reason was recorded",
            next_step=f"read the log ({died.plan.log}), then run `{died.restart_command}`",
        )
    if address is not None:
        raise NoServer(
            f"No tllm server is running on {address}.",
            next_step="run `tllm status` to list the running servers",
        )
    raise no_server(home, model)


def no_server(home: Home, model: str | None) -> NoServer:
    """Return the error for a command that requires a server for `model`, or any server if None."""
    if model is None:
        return NoServer("No server is running.", next_step=suggest_start(home, None))
    return NoServer(
        f"No server is running for {model}.",
        why=""
        if model in list_names(home)
        else "no imported model and no model on a running server has this name",
        next_step=suggest_start(home, model),
    )


def suggest_start(home: Home, model: str | None) -> str:
    """Return the suggestion to print if no server is running for `model`.

    `model` is None if the user did not specify a model.
    """
    names = list_names(home)
    if model is None:
        if len(names) > 1:
            return f"run `tllm start -m {names[0]}`, or list the other models with `tllm list`"
        return "run `tllm start`" if names else "run `tllm import -m demo`"
    if model in names:
        return f"run `tllm start -m {model}`"
    return unknown_model(home, model).next_step


def find_by_triton_model(home: Home, name: str, address: str | None = None) -> RunningServer | None:
    """Return the only running server that has the Triton model `name` and listens on `address`.

    Return None if no running server has the Triton model. Also return None if a server serves an
    imported model with the same name, because the imported model takes precedence. Raise `NoServer`
    if several running servers have the Triton model.
    """
    if find_servers(home, name):
        return None
    found = [
        server
        for server in find_servers(home, None, address)
        if server.is_running and name in server.plan.every_model
    ]
    if len(found) > 1:
        raise _ambiguous(found)
    return found[0] if found else None


def _how_to_check(server: RunningServer) -> str:
    """Return the next step for determining the unknown state of a server."""
    if server.job is not None:
        return "run `sinfo` to check whether Slurm's controller responds, then run `tllm status`"
    if server.state.is_in_other_container:
        return "run `tllm status` in that container"
    gone = f"rm -r {shlex.quote(str(server.directory))}"
    return f"run `tllm status` on {server.state.host}, or `{gone}` if that machine no longer exists"


def find_started(home: Home, model: str | None, address: str | None = None) -> RunningServer:
    """Return the only matching server or, if several servers match, the only running server.

    Raise `NoServer` if no server matches, or if the choice between matching servers is ambiguous.
    """
    servers = find_servers(home, model, address)
    if len(servers) == 1:
        return servers[0]
    if servers and all(server.is_over for server in servers):
        raise _ambiguous(servers)
    return find_running(home, model, address)


def find_logged(home: Home, model: str | None, address: str | None = None) -> RunningServer:
    """Return the server whose log to read.

    This is the server that `find_started` returns. If only stopped servers match, return the server
    that was stopped last. Raise the errors of `find_started`.
    """
    stopped = [
        server
        for server in _read_servers(home)
        if server.phase == "stopped" and _matches(server, model, address)
    ]
    if stopped and not find_servers(home, model, address):
        return max(stopped, key=lambda server: server.directory.stat().st_mtime)
    return find_started(home, model, address)


def find_to_stop(
    home: Home, model: str | None, address: str | None = None, *, everything: bool = False
) -> list[RunningServer]:
    """Return the servers to stop or to clean up, except servers on other machines.

    By default, return the only matching server that may be running. If all matching servers have
    ended, return all of them for cleanup. If `everything` is set, return all matching servers.

    Unless `everything` is set, raise `NoServer` if no server matches, if several matching servers
    may be running, or if all matching servers may be running on other machines.
    """
    found = find_servers(home, model, address)
    servers = [server for server in found if not server.state.is_elsewhere]
    active = [server for server in servers if not server.is_over]
    ended = [server for server in servers if server.is_over]
    if everything:
        return active + ended
    if len(active) > 1:
        raise _ambiguous(active)
    if not found and model is not None:
        raise NoServer(
            f"No server is running for {model}{f' at {address}' if address else ''}.",
            next_step="run `tllm status` to list the servers",
        )
    if not found and address is None:
        raise NoServer("No server is running.")
    return active or ended or [find_running(home, model, address)]


def _ambiguous(servers: list[RunningServer]) -> NoServer:
    if all(server.is_running for server in servers):
        what = "are running"
    else:
        what = "have ended" if all(server.is_over for server in servers) else "may be running"
    return NoServer(
        f"{len(servers)} servers {what}.",
        why="the command applies to a single server, but several servers match: "
        f"{_describe_servers(servers)}",
        next_step=f"select a server with {_how_to_select(servers)}",
    )


def _how_to_select(servers: list[RunningServer]) -> str:
    """Return the option that selects one of the servers.

    The option is -m only if each server has a model that the other servers do not have.
    """
    counts = Counter(model for server in servers for model in server.models)
    if all(any(counts[model] == 1 for model in server.models) for server in servers):
        return "-m NAME or -u HOST:PORT"
    address = next(filter(None, (server.plan.endpoint.http for server in servers)), "")
    return f"-u HOST:PORT, for example -u {address}" if address else "-u HOST:PORT"
