"""Start the server process with its environment, log and resource limits."""

from __future__ import annotations

import functools
import os
import resource
import signal
import subprocess
from pathlib import Path

from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.supervisor.hangs.watch import pulse_environ
from trtllm_serve_cli.launch.supervisor.leftovers import scratch_environ
from trtllm_serve_cli.launch.triton.drain import drain_environ
from trtllm_serve_cli.processes import SINGLE_THREADED, die_with_parent
from trtllm_serve_cli.runtime.telemetry.server_metrics import STATE_FOLDER, STATE_PUBLISHER
from trtllm_serve_cli.runtime.worker import stack_limit

# Minimum stack size of Triton's threads in bytes, unless the hard limit is lower. The kernel
# allocates stack memory only when it is used.
_STACK_BYTES = 1 << 30


def spawn_server(plan: LaunchPlan) -> tuple[subprocess.Popen[bytes], int]:
    """Start the plan's command in a new session and redirect its output to the server's log.

    Return the process and the byte offset in the log at which its output starts. Raise `OSError` if
    the log cannot be opened or the program cannot be started.
    """
    with plan.log.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            plan.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                **SINGLE_THREADED,
                **os.environ,
                **plan.environ,
                **drain_environ(plan.directory),
                **pulse_environ(plan.directory),
                **scratch_environ(plan.directory),
                **state_environ(plan),
                stack_limit.VARIABLE: str(resource.getrlimit(resource.RLIMIT_STACK)[0]),
            },
            start_new_session=True,
            preexec_fn=functools.partial(_prepare_server, _parent_death_signal(plan)),
        )
    return process, start


def state_environ(plan: LaunchPlan) -> dict[str, str]:
    """Return the environment variables that select which model publishes the server's state.

    The first text model that is loaded at startup publishes the state. Return an empty dict if no
    text model is loaded at startup.
    """
    loaded = [each for each in plan.text_models if each in plan.loading]
    if not loaded:
        return {}
    return {STATE_FOLDER: str(plan.directory), STATE_PUBLISHER: loaded[0]}


def _parent_death_signal(plan: LaunchPlan) -> signal.Signals:
    """Return the signal that the child process receives if the supervisor dies.

    In local mode, the signal is SIGKILL. In other modes, it is SIGTERM, which allows `mpirun` or
    the container engine's client to stop the processes that it started.
    """
    return signal.SIGKILL if plan.mode == "local" else signal.SIGTERM


def _prepare_server(parent_death_signal: int) -> None:
    """Set the child process's parent-death signal and stack limit before `exec`.

    Keep the stack limit if it is infinite, or if the kernel does not overcommit memory.
    """
    die_with_parent(parent_death_signal)
    # Triton 2.51 parses JSON and chunked bodies recursively. With the default stack size of 8 MiB,
    # a request with deeply nested JSON or with millions of chunks crashes Triton.
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and _overcommits_memory():
        limit = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(hard, _STACK_BYTES)
        resource.setrlimit(resource.RLIMIT_STACK, (max(soft, limit), hard))


def _overcommits_memory() -> bool:
    """Return whether the kernel allows processes to overcommit memory.

    Return False if the kernel's setting cannot be read.
    """
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "2"
    except OSError:
        return False
