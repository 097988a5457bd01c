"""The servers that `tllm start` left running."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.errors import NoServer
from trtllm_serve_cli.launch.clusters.slurm_job import JOB_FILE, NO_ENDPOINT, SlurmJob, read_job
from trtllm_serve_cli.launch.logs.triton_log import explain_log
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.server_state import PLAN_FILE, ServerState, read_state
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.processes import last_lines


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server, running or not: its plan, and its state when it was looked at.

    `state.phase` may be "failed"; a server whose supervisor is gone without a word counts as that.
    `job` is there for one that Slurm runs, which has no supervisor.
    """

    directory: Path
    plan: LaunchPlan
    state: ServerState
    job: SlurmJob | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers. Raises `NoServer` for a job that is not on a node."""
        if self.plan.endpoint == NO_ENDPOINT:
            raise NoServer(
                f"The server for {', '.join(self.models)} has no address yet.",
                why="; ".join(self.state.why) or f"it is {self.phase}",
                next_step="`tllm status` shows when it is ready",
            )
        return self.plan.endpoint

    @property
    def location(self) -> str:
        """What tells it from other servers: its address, or its job."""
        if self.job is not None:
            return f"Slurm job {self.job.id}"
        return self.plan.endpoint.http

    @property
    def restart_command(self) -> str:
        """The command that starts it anew once it has ended; of a job without its options."""
        if self.job is not None:
            return f"tllm deploy slurm -m {self.models[0]} --submit"
        return f"tllm restart -u {self.location}"

    @property
    def models(self) -> tuple[str, ...]:
        return self.plan.models

    def text_model(self, model: str | None = None) -> str:
        """What Triton calls the model to ask for `model`, or for the first one."""
        served = dict(zip(self.plan.models, self.plan.text_models, strict=True))
        return served[model or self.plan.models[0]]

    @property
    def is_running(self) -> bool:
        if self.job is not None:
            return self.job.is_alive
        return self.state.is_supervised

    @property
    def is_over(self) -> bool:
        """Whether it is known to run no more.

        Of a job, Slurm may say neither this nor that; another machine's server is known there.
        """
        if self.job is not None:
            return self.job.is_over
        return not self.is_running and not self.state.is_elsewhere

    @property
    def phase(self) -> str:
        """What is true now, whatever was written last."""
        if self.job is not None or self.is_running or self.state.phase in ("failed", "stopped"):
            return self.state.phase
        return "unknown" if self.state.is_elsewhere else "died"

    @property
    def why(self) -> tuple[str, ...]:
        """Why it is as it is; of one that died without a word, what its log said last."""
        if self.state.is_elsewhere:
            return (f"it was started on {self.state.host}, and is known there alone",)
        if self.phase != "died":
            return self.state.why
        if not self.state.is_from_this_boot:
            return ("it ended when this machine was started anew",)
        log_lines = explain_log(last_lines(self.plan.log, 400))
        return ("its supervisor was killed", *log_lines)


def read_server(directory: Path) -> RunningServer:
    """The server whose folder this is. Raises `NoServer` when it is none."""
    if (directory / JOB_FILE).exists() and (found := read_job(directory)) is not None:
        return RunningServer(directory, *found)
    state = read_state(directory)
    try:
        plan = LaunchPlan.from_json((directory / PLAN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        plan = None
    if state is None or plan is None:
        raise NoServer(f"{directory} holds no server's state.", next_step="tllm start")
    return RunningServer(directory, plan, state)


def list_servers(home: Home) -> list[RunningServer]:
    """Every server that was started and not stopped, also those that died and jobs that ended.

    Those of this machine by HTTP port, then jobs.
    """
    servers = []
    directories = home.servers.iterdir() if home.servers.exists() else ()
    for directory in directories:
        try:
            server = read_server(directory)
        except NoServer:
            continue
        if server.phase != "stopped":
            servers.append(server)
    return sorted(servers, key=_order)


def _order(server: RunningServer) -> tuple[int, str]:
    port = server.directory.name
    return (int(port), "") if port.isdecimal() else (1 << 16, port)


def find_servers(home: Home, model: str | None, address: str | None = None) -> list[RunningServer]:
    """Of `list_servers`, those that serve `model` and listen on `address`, as far as given."""
    return [
        server
        for server in list_servers(home)
        if (model is None or model in server.models)
        and (address is None or address in _addresses(server))
    ]


def _addresses(server: RunningServer) -> tuple[str, ...]:
    plan = server.plan
    every = (plan.endpoint, *plan.replicas)
    return tuple(address for each in every for address in (each.http, each.grpc, each.metrics))


def _describe_servers(servers: Iterable[RunningServer]) -> str:
    """Each server's models and address: one model may be served twice."""
    return ", ".join(f"{' and '.join(each.models)} on {each.location}" for each in servers)


def find_running(home: Home, model: str | None, address: str | None = None) -> RunningServer:
    """The running server, or the one of them that serves `model` or listens on `address`.

    Raises `NoServer` when there is none, when there are several to choose from, and where nobody
    here knows whether it runs: a job of which Slurm says nothing, a server of another machine.
    """
    servers = find_servers(home, model, address)
    running = [server for server in servers if server.is_running]
    if len(running) == 1:
        return running[0]
    if running:
        raise _ambiguous(running)
    if unknown := [server for server in servers if not server.is_over]:
        raise NoServer(
            f"Whether the server for {', '.join(unknown[0].models)} is running is not known.",
            why="; ".join(unknown[0].why),
            next_step=_how_to_check(unknown[0]),
        )
    if servers:
        died = servers[0]
        raise NoServer(
            f"The server for {', '.join(died.models)} is not running any more.",
            why="; ".join(died.why) or "it was ended",
            next_step=f"{died.restart_command}   (its log: {died.plan.log})",
        )
    if address is not None:
        raise NoServer(
            f"No server of tllm's is running on {address}.",
            next_step="`tllm status` shows the addresses of those that are",
        )
    suffix = f" -m {model}" if model else ""
    raise NoServer(
        f"No server is running{' for ' + model if model else ''}.", next_step=f"tllm start{suffix}"
    )


def _how_to_check(server: RunningServer) -> str:
    """How to learn whether a server runs that is neither running nor over, as far as is known."""
    if server.job is not None:
        return "sinfo   (then `tllm status`)"
    gone = f"rm -r {shlex.quote(str(server.directory))}"
    return f"tllm status   (on {server.state.host}; if that machine is no more: {gone})"


def find_started(home: Home, model: str | None, address: str | None = None) -> RunningServer:
    """As `find_running`, and where nothing runs, the one server that died or failed.

    Raises `NoServer` as that does, and when there are several of those to choose from.
    """
    servers = find_servers(home, model, address)
    if len(servers) == 1:
        return servers[0]
    if servers and all(server.is_over for server in servers):
        raise _ambiguous(servers)
    return find_running(home, model, address)


def find_to_stop(
    home: Home, model: str | None, address: str | None = None, *, everything: bool = False
) -> list[RunningServer]:
    """The server that runs, or may run, as far as is known; else those that left something.

    Those are jobs that have ended, and servers whose container may have outlived them. With
    `everything` it is all of both; else raises `NoServer` when there is nothing to stop, or there
    are several to choose from. Those of another machine are not ours to stop.
    """
    found = find_servers(home, model, address)
    servers = [server for server in found if not server.state.is_elsewhere]
    active = [server for server in servers if not server.is_over]
    ended = [
        server
        for server in servers
        if (server.job is not None and server.is_over)
        or (server.plan.container is not None and server.phase == "died")
    ]
    if everything:
        return active + ended
    if len(active) > 1:
        raise _ambiguous(active)
    return active or ended or [find_running(home, model, address)]


def _ambiguous(servers: list[RunningServer]) -> NoServer:
    if all(server.is_running for server in servers):
        what = "are running"
    else:
        what = "have ended" if all(server.is_over for server in servers) else "may be running"
    return NoServer(
        f"{len(servers)} servers {what}.",
        why=f"they serve {_describe_servers(servers)}",
        next_step="choose one with -m NAME, or its address with -u HOST:PORT",
    )
