"""Stop servers and clean up after servers that have ended."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from trtllm_serve_cli.containers.container_engine import remove_container
from trtllm_serve_cli.errors import BadInput, LaunchFailed, NoServer
from trtllm_serve_cli.launch.server_state import (
    START_LOCK,
    clear_stop_request,
    is_stop_requested,
    read_state,
    read_stop_timeout_s,
    request_stop,
    write_state,
    write_stop_timeout,
)
from trtllm_serve_cli.launch.servers.running import RunningServer, read_server
from trtllm_serve_cli.launch.supervisor.server_processes import wait_until_dead

_POLL_S = 0.05
# Time limit, in seconds, for processes to exit before they are killed. The limit is longer than the
# five seconds that the reaper waits before it kills the processes of a killed supervisor.
_KILL_WAIT_S = 10.0


def remove_stale_container(directory: Path) -> None:
    """Remove the container of the server in `directory` if the server has ended.

    A container keeps running if both the supervisor and the docker or podman client were killed. If
    another process is starting the server, do nothing.
    """
    import filelock

    with contextlib.suppress(NoServer, filelock.Timeout):
        server = read_server(directory)
        if server.plan.container is None or not server.is_over:
            return
        # Hold the lock, because a server that is starting may not have written its state yet.
        with filelock.FileLock(directory / START_LOCK, timeout=0):
            if read_server(directory).is_over:
                remove_container(server.plan.container)


def _forget(directory: Path) -> None:
    """Mark the server in `directory` as stopped if it has ended, so that it is no longer listed.

    If another process is starting the server, do nothing.
    """
    import filelock

    with (
        contextlib.suppress(NoServer, filelock.Timeout),
        filelock.FileLock(directory / START_LOCK, timeout=0),
    ):
        server = read_server(directory)
        if server.is_over:
            write_state(directory, dataclasses.replace(server.state, phase="stopped"))


def stop_server(
    server: RunningServer,
    timeout_s: float | None = None,
    *,
    on_progress: Callable[[Mapping[str, int]], None] = lambda in_flight: None,
    ending_s: float = 45.0,
    is_restart: bool = False,
) -> tuple[str, ...]:
    """Stop the server gracefully and wait until all its processes have ended.

    The server rejects new requests. Return messages about cancelled requests. If the supervisor has
    already ended, only clean up after the server.

    - `timeout_s`: time limit for requests in flight, in seconds. If None, use the timeout from an
      earlier stop request or, by default, from the plan.
    - `on_progress`: called repeatedly with the number of requests in flight for each engine.
    - `ending_s`: time, in seconds, by which the supervisor may exceed the stop timeout before it is
      killed.
    - `is_restart`: true if the caller will start the server again.

    Raise `LaunchFailed` if another command requests a stop during a restart. For a Slurm job, raise
    the errors of `cancel_job`, or `BadInput` if `timeout_s` is positive and the job may still be
    running.
    """
    if server.job is not None:
        if timeout_s and not server.is_over:
            raise BadInput(
                f"{server.location} cannot be stopped gracefully.",
                why="Slurm ends all processes of a job at the same time, so requests in flight "
                "cannot finish",
                next_step=f"run `{server.stop_command}` without --timeout to cancel the job "
                "and its requests",
            )
        # Import the module only for a job, because it also imports the planning of jobs.
        from trtllm_serve_cli.launch.clusters.slurm_job import cancel_job

        cancel_job(server.directory, server.job)
        return ()
    if not server.state.is_supervised:
        remove_stale_container(server.directory)
        _forget(server.directory)
        return ()
    if timeout_s is not None:
        write_stop_timeout(server.directory, timeout_s)
    if is_restart:
        clear_stop_request(server.directory)
    else:
        request_stop(server.directory)
    messages = _stop_supervised(server, on_progress, ending_s)
    if is_restart and is_stop_requested(server.directory):
        raise LaunchFailed(
            f"The server for {', '.join(server.models)} was not restarted.",
            why="another command stopped the server during the restart",
            next_step=f"run `tllm start -m {' -m '.join(server.models)}`",
        )
    return messages


def _stop_supervised(
    server: RunningServer, on_progress: Callable[[Mapping[str, int]], None], ending_s: float
) -> tuple[str, ...]:
    """Stop a server that has a supervisor and return messages about cancelled requests."""
    processes = _list_processes(server)
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.state.supervisor_pid, signal.SIGTERM)
        # Resume the supervisor if it is suspended, so that it handles SIGTERM.
        os.kill(server.state.supervisor_pid, signal.SIGCONT)
    started_s = time.monotonic()
    while server.state.is_supervised and not _is_late(server, started_s, ending_s):
        on_progress(state.in_flight if (state := read_state(server.directory)) else {})
        time.sleep(_POLL_S)
    is_killed = server.state.is_supervised
    if is_killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.state.supervisor_pid, signal.SIGKILL)
    _end_processes(processes)
    if server.plan.container is not None:
        remove_container(server.plan.container)
    if is_killed:
        _forget(server.directory)
        return ("the supervisor did not respond and was killed, so all requests were cancelled",)
    state = read_state(server.directory)
    return state.why if state is not None else ()


def _is_late(server: RunningServer, started_s: float, ending_s: float) -> bool:
    """Return whether the supervisor has exceeded the stop timeout by more than `ending_s`.

    Read the timeout each time, because another `tllm stop` may change it.
    """
    limit_s = read_stop_timeout_s(server.directory, server.plan.exit_timeout_s)
    return time.monotonic() - started_s > limit_s + ending_s


def _list_processes(server: RunningServer) -> list[psutil.Process]:
    """List the supervisor and its descendants, or no processes if the supervisor has ended.

    List only the supervisor if its descendants cannot be read.
    """
    processes: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        processes.append(psutil.Process(server.state.supervisor_pid))
        processes += processes[0].children(recursive=True)
    return processes


def _end_processes(processes: Sequence[psutil.Process]) -> None:
    """Wait for the processes to exit. Kill processes that still run after `_KILL_WAIT_S`."""
    alive = wait_until_dead(processes, _KILL_WAIT_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    wait_until_dead(alive, _KILL_WAIT_S)
