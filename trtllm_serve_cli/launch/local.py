"""Starts and stops servers on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trtllm_serve_cli.errors import LaunchFailed, MissingPart
from trtllm_serve_cli.launch.log import find_loading
from trtllm_serve_cli.launch.machine import find_libpython, find_triton, has_nvidia_gpu
from trtllm_serve_cli.launch.plan import LaunchOptions, LaunchPlan, plan_launch
from trtllm_serve_cli.launch.ports import check_ports
from trtllm_serve_cli.launch.running import RunningServer, read_server
from trtllm_serve_cli.launch.state import PLAN_FILE, STATE_FILE, ServerState, read_state
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.processes import last_lines
from trtllm_serve_cli.repository import load_model

_POLL_S = 0.1
TOKEN_FILE = "restricted-api-token"


def plan_for_this_machine(home: Home, model: str | None, options: LaunchOptions) -> LaunchPlan:
    """How to serve the imported model `model` (the only one when None) here.

    Raises `UnknownModel` and `MissingPart`, the latter for what Triton would only stumble over.
    """
    triton = find_triton(os.environ)
    libpython_dir = find_libpython()
    if triton.backend_parts is not None and libpython_dir is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise MissingPart(
            f"Triton's Python stub needs libpython{version}.so.1.0.",
            why="neither this Python nor the system has it",
            next_step=f"apt-get install libpython{version}   (`tllm doctor` checks the rest)",
        )
    return plan_launch(
        load_model(home, model),
        triton,
        options,
        servers=home.servers,
        token=secrets.token_urlsafe(24),
        libpython_dir=libpython_dir or "",
        has_gpu=has_nvidia_gpu(),
    )


def launch(
    plan: LaunchPlan, *, host: str, on_progress: Callable[[Sequence[str]], None]
) -> RunningServer:
    """Start the server and return once a token was generated; it goes on running, supervised.

    `on_progress` gets the models still loading, now and then. Raises `LaunchFailed` with the cause
    out of the server's log; then, as after an interrupt, nothing is left running.
    """
    prepare(plan, host=host)
    supervisor = _spawn_supervisor(plan.directory)
    try:
        state = _wait(plan, supervisor, on_progress)
    except BaseException:
        supervisor.terminate()
        supervisor.wait()
        raise
    if state.phase != "ready":
        supervisor.wait()
        raise explain_failure(plan, state)
    return read_server(plan.directory)


def run_in_foreground(plan: LaunchPlan, *, host: str, on_ready: Callable[[], None]) -> None:
    """Run the server attached to this process until it ends or is interrupted."""
    prepare(plan, host=host)
    supervisor = _spawn_supervisor(plan.directory)
    try:
        state = _wait(plan, supervisor, lambda loading: None)
        if state.phase == "ready":
            on_ready()
        supervisor.wait()
    except BaseException:
        supervisor.terminate()
        supervisor.wait()
        raise
    last = read_state(plan.directory)
    if last is not None and last.phase == "failed":
        raise explain_failure(plan, last)


def prepare(plan: LaunchPlan, *, host: str) -> None:
    """Make the server's folder as `plan` wants it. Raises `LaunchFailed` when a port is taken."""
    check_ports(host, plan.ports)
    plan.directory.mkdir(parents=True, exist_ok=True)
    # The token in here opens what the server restricts.
    plan.directory.chmod(0o700)
    (plan.directory / STATE_FILE).unlink(missing_ok=True)
    plan.log.write_bytes(b"")
    for relative, target in plan.backends.items():
        link = plan.directory / relative
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    for name, text in (
        (PLAN_FILE, plan.to_json()),
        (TOKEN_FILE, f"{plan.endpoint.restricted_token}\n"),
    ):
        path = plan.directory / name
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")


def stop_server(server: RunningServer) -> None:
    """End the server in order and wait until it is gone, its processes with it."""
    pid = server.state.supervisor_pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + server.plan.exit_timeout_s + 15
    while server.state.is_supervised and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    if server.state.is_supervised:
        # The server dies with its supervisor.
        os.kill(pid, signal.SIGKILL)


def explain_failure(plan: LaunchPlan, state: ServerState) -> LaunchFailed:
    """Why the server did not become ready, in a few lines of its log."""
    why = state.why or tuple(last_lines(plan.log, 5))
    return LaunchFailed(
        f"The server for {', '.join(plan.models)} did not become ready.",
        why="\n       ".join(why),
        next_step=f"`tllm doctor` checks this machine; the whole log is {plan.log}",
    )


def _spawn_supervisor(directory: Path) -> subprocess.Popen[bytes]:
    command = (sys.executable, "-m", "trtllm_serve_cli.launch.supervisor", str(directory))
    with (directory / "supervisor.log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            # Not the terminal's: its Ctrl-C is for whoever started us, and we pass it on.
            start_new_session=True,
        )


def _wait(
    plan: LaunchPlan,
    supervisor: subprocess.Popen[bytes],
    on_progress: Callable[[Sequence[str]], None],
) -> ServerState:
    """The state once it is ready or failed. The supervisor keeps the time limit."""
    while True:
        state = read_state(plan.directory)
        if state is not None and state.phase in ("ready", "failed", "stopped"):
            return state
        if supervisor.poll() is not None and read_state(plan.directory) == state:
            raise LaunchFailed(
                "The server's supervisor ended before the server was ready.",
                why="\n       ".join(last_lines(plan.directory / "supervisor.log", 5)),
                next_step="run it again, and tell us if it happens again: this is a bug",
            )
        on_progress(find_loading(last_lines(plan.log, 400), plan.loading))
        time.sleep(_POLL_S)
