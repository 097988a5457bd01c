"""Run and monitor Triton as a task of a Slurm job, which has no supervisor.

The task hides the token of Triton's restricted APIs and the models' shared memory from other users
of the node. On the first rank, the task also detects hung processes. It kills a hung engine worker
or gateway, and the parent process restarts the killed process. If any other process hangs, the task
kills Triton, and the job fails. The first rank also writes the server's state to a file for
`tllm status` and the gateway.

To hide the token, the task overwrites it in Triton's memory. A process can usually write only to
the memory of its descendants, so the task itself starts Triton.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .. import scratch
from .health_probe import HealthProbe, responds_on_http
from .hidden_argument import hide_in_command_lines
from .hung_processes import kill_alone, write_stacks
from .liveness import (
    Observer,
    Sign,
    Silence,
    count_processes,
    describe_silence,
    read_pulse_signs,
)
from .processes import list_descendants
from .shared_memory import protect_regions
from .token_probe import TokenProbe, count_steps
from .watch_settings import WatchSettings, parse_arguments

TOKEN_VARIABLE = "TLLM_TOKEN"
_POLL_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ServerWatch:
    """Detects hung parts of the server and records the server's state in `state_file`.

    `pid` is the process id of Triton or of the program that starts it.
    """

    def __init__(self, settings: WatchSettings, state_file: Path, pid: int) -> None:
        self._settings = settings
        self._state_file = state_file
        self._pid = pid
        self._observer = Observer(time.monotonic)
        self._health = HealthProbe(
            settings.http,
            partial(responds_on_http, settings.http),
            time.monotonic,
            period_s=settings.limits.probe_period_s,
        )
        self._token: TokenProbe | None = None
        self._has_started = False
        self._state: dict[str, Any] = {"server_pid": pid, "restarts": 0, "hangs": 0, "why": ()}
        # False if the file does not contain the latest state.
        self._is_saved = False
        self._write_state("starting")

    def check(self) -> bool:
        """Observe the server once and kill hung engine workers and gateways.

        Return whether the whole server must be killed. Before Triton's first response, only send
        health requests and return False.
        """
        if not self._has_started:
            self._health.read_sign(self._settings.limits, self._pid)
            if not self._health.num_responses:
                return False
            self._begin()
        silences = self._observer.observe(self._read_signs())
        silent = [each for each in silences if each.is_silent]
        messages = tuple(map(describe_silence, silent))
        hanging = [each for each in silent if each.is_hang]
        num_hangs = count_processes(hanging)
        self._write_state("unresponsive" if silent else "ready", messages, num_hangs)
        return bool(hanging) and self._end(hanging)

    def _begin(self) -> None:
        self._has_started = True
        self._observer = Observer(time.monotonic)
        settings = self._settings
        if settings.needs_tokens:
            self._token = TokenProbe(
                settings.token_model,
                settings.request_token,
                partial(count_steps, settings.metrics),
                idle_s=settings.limits.token_period_s,
                clock=time.monotonic,
            )

    def _read_signs(self) -> Iterator[Sign]:
        limits = self._settings.limits
        yield from read_pulse_signs(self._settings.pulses, limits, reports_ended=True)
        yield self._health.read_sign(limits, self._pid)
        if self._token is not None and (sign := self._token.read_sign(limits, self._pid)):
            yield sign

    def _end(self, hanging: Sequence[Silence]) -> bool:
        """Kill hung engine workers and gateways. Return whether the server must be killed."""
        write_stacks(hanging)
        messages = tuple(map(describe_silence, hanging))
        needs_end = False
        for silence, message in zip(hanging, messages, strict=True):
            if is_killed := kill_alone(silence):
                self._observer.forget(silence)
            needs_end |= not is_killed
            log("E", f"{message}; {'restarting it' if is_killed else 'ending the job'}")
        if needs_end:
            self._write_state("failed", messages)
        return needs_end

    def _write_state(self, phase: str, why: tuple[str, ...] = (), num_hangs: int = 0) -> None:
        """Write the state to the file if the file does not contain it. Ignore write errors."""
        hangs = self._state["hangs"] + num_hangs
        state = {**self._state, "phase": phase, "why": why, "hangs": hangs}
        if state == self._state and self._is_saved:
            return
        self._state, self._is_saved = state, False
        temporary = self._state_file.with_suffix(".part")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(state), encoding="utf-8")
            temporary.replace(self._state_file)
            self._is_saved = True


class SecretGuard:
    """Hides `token` in command lines and protects shared memory regions.

    `pid` is the process id of Triton or of the program that starts it. `prefix` is the name prefix
    of the regions.
    """

    def __init__(self, pid: int, token: str, prefix: str) -> None:
        self._pid = pid
        self._token = token
        self._prefix = prefix
        self._is_hidden = not token
        self._visible: dict[int, str] = {}

    def protect(self) -> None:
        """Protect the existing regions, and hide the token after Triton has read it.

        Triton creates the first region only after it has read its arguments.
        """
        if protect_regions(self._prefix) and not self._is_hidden:
            self._hide((self._pid, *list_descendants(self._pid)))

    def _hide(self, pids: Iterable[int]) -> None:
        visible = hide_in_command_lines(pids, self._token)
        self._is_hidden = not visible
        for pid in visible.keys() - self._visible:
            log(
                "W",
                f"the command line of process {pid} shows other users the token for the "
                f"restricted APIs, because the token could not be overwritten: {visible[pid]}",
            )
        self._visible |= visible


def log(level: str, message: str) -> None:
    """Write a line to the task's log.

    Ignore write errors, because a full disk must not end the task and thereby the server.
    """
    with contextlib.suppress(OSError):
        print(f"{level} watch] {message}", file=sys.stderr, flush=True)


def run_task(
    command: Sequence[str],
    *,
    token: str,
    prefix: str,
    watch: tuple[WatchSettings, Path] | None = None,
    poll_s: float = _POLL_S,
) -> int:
    """Run Triton with `command` and return the exit code, or 128 + n if signal n ended Triton.

    Return 1 if the whole server was killed because a process hung. `token` and `prefix` are the
    arguments of `SecretGuard`. `watch` contains the settings and the path of the state file, or is
    None if this rank does not detect hangs. `poll_s` is the interval between checks, in seconds.
    """
    if token:
        hide_in_command_lines((os.getpid(),), token)
    stopping = threading.Event()

    def stop(number: int, frame: object) -> None:
        stopping.set()
        process.send_signal(number)

    # The files of killed processes are removed at the end.
    with tempfile.TemporaryDirectory(prefix="tllm-", ignore_cleanup_errors=True) as folder:
        # Do not close other file descriptors, because some MPI libraries use inherited connections.
        process = subprocess.Popen(
            command, close_fds=False, env={**os.environ, scratch.VARIABLE: folder}
        )
        for number in _SIGNALS:
            signal.signal(number, stop)
        guard = SecretGuard(process.pid, token, prefix)
        server = ServerWatch(*watch, process.pid) if watch is not None else None
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(poll_s)
                return code if code >= 0 else 128 - code
            guard.protect()
            if server is not None and not stopping.is_set() and server.check():
                _kill((process.pid, *list_descendants(process.pid)))
                process.wait()
                return 1


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Run the command after `--` and exit with the code that `run_task` returns.

    Read the token from `$TLLM_TOKEN`.
    """
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--regions", required=True)
    parser.add_argument("--state", type=Path, required=True)
    settings, arguments = parse_arguments(parser, sys.argv[1:split])
    code = run_task(
        sys.argv[split + 1 :],
        token=os.environ.get(TOKEN_VARIABLE, ""),
        prefix=arguments.regions,
        watch=(settings, arguments.state) if arguments.rank == 0 else None,
    )
    sys.exit(code)
