"""The process that owns a server: starts it, waits until it is ready, keeps it so, ends it.

    python -m trtllm_serve_cli.launch.supervisor SERVER_DIRECTORY

It is the only writer of the server's state. The server dies with it, whatever kills it. One in a
container is another's child: our child is the program that is attached to it, which passes our
SIGTERM on, and the container is removed by its name before and after each life. A server
that was ready once and died, or lost a model's process (its Triton would go on answering ready), is
started again; one that never became ready is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from trtllm_serve_cli.client.server import probe_token
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.launch.containers.container_engine import find_first_process, remove_container
from trtllm_serve_cli.launch.logs.triton_log import explain_log
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.server_state import (
    PLAN_FILE,
    Phase,
    describe_supervisor,
    read_stop_timeout_s,
    write_state,
)
from trtllm_serve_cli.launch.servers.live_status import IN_FLIGHT_TIMEOUT_S, watch_in_flight
from trtllm_serve_cli.launch.supervisor.server_processes import (
    Parts,
    confirm_dead,
    describe_dead,
    find_dead,
    find_parts,
    find_tritons,
    is_gone,
    kill_remains,
    list_tree,
    send_signal,
    update_parts,
)
from trtllm_serve_cli.launch.supervisor.stop_signal import StopSignal
from trtllm_serve_cli.launch.triton.drain import (
    clear_drains,
    drain_environ,
    draining,
    format_in_flight,
)
from trtllm_serve_cli.processes import die_with_parent, last_lines

# `mpirun` gives its ranks a second.
_MPIRUN_EXIT_S = 5.0
# It gives the other ranks a second when one has died, and then says which one did.
_MPIRUN_ABORT_S = 4.0
# Until whoever is attached to a container that has ended does so, too: seconds on busy cores.
_ATTACHED_END_S = 20.0


@dataclass(frozen=True, slots=True)
class SupervisorLimits:
    """How often a supervisor looks, and when it gives up.

    More than `max_restarts` in a row, none after more than `reset_after_s`, end it. A server
    without requests in flight has `exit_s` to end; one that does not answer within
    `metrics_timeout_s` may have some. A log longer than `max_log_bytes` is moved aside.
    """

    poll_s: float = 0.2
    watch_s: float = 1.0
    probe_timeout_s: float = 60.0
    first_backoff_s: float = 1.0
    max_backoff_s: float = 30.0
    max_restarts: int = 5
    reset_after_s: float = 120.0
    exit_s: float = 30.0
    metrics_timeout_s: float = IN_FLIGHT_TIMEOUT_S
    max_log_bytes: int = 64 * 1024 * 1024


class Supervisor:
    """Owns one server until `stop` or the server's end for good."""

    def __init__(self, plan: LaunchPlan, limits: SupervisorLimits = SupervisorLimits()) -> None:
        self._plan = plan
        self._limits = limits
        self._stopping = StopSignal()
        self._process: subprocess.Popen[bytes] | None = None
        self._first_pid: int | None = None
        self._log_start = 0
        self._parts: Parts = {}
        self._state = describe_supervisor("starting")

    def stop(self) -> None:
        """Ask for an orderly end; returns at once. A signal's handler may call it."""
        self._stopping.set()

    def run(self) -> bool:
        """Keep the server running; returns whether it ended because it was asked to."""
        backoff_s, num_failures = self._limits.first_backoff_s, 0
        # Clearing a container away can take a minute, in which it may be asked after, or stopped.
        self._write_state("starting")
        try:
            while True:
                started_s = time.monotonic()
                why = self._run_once()
                if self._stopping.is_set():
                    self._write_state("stopped", server_pid=None)
                    return True
                self._end_server()
                if self._state.ready_at is None:
                    self._write_state("failed", server_pid=None, why=why)
                    return False
                if time.monotonic() - started_s > self._limits.reset_after_s:
                    backoff_s, num_failures = self._limits.first_backoff_s, 0
                num_failures += 1
                if num_failures > self._limits.max_restarts:
                    self._write_state("failed", server_pid=None, why=why)
                    return False
                restarts = self._state.restarts + 1
                self._write_state("restarting", server_pid=None, why=why, restarts=restarts)
                self._stopping.wait(backoff_s)
                backoff_s = min(backoff_s * 2, self._limits.max_backoff_s)
        finally:
            self._end_server()
            _remove_shared_memory(self._plan)

    def _run_once(self) -> tuple[str, ...]:
        """Run the server until it ends, loses a part or is to stop; returns why."""
        if self._stopping.is_set():
            return ()
        try:
            self._spawn()
        except OSError as error:
            return (f"{self._plan.argv[0]} does not start: {error.strerror}",)
        why = self._wait_until_ready()
        if why is None:
            self._write_state("ready", ready_at=time.time(), server_pid=self._find_first_pid())
            why = self._watch()
        if self._stopping.is_set():
            # From now on it is what became of requests.
            self._state = dataclasses.replace(self._state, why=())
            self._end_server()
        return why

    def _spawn(self) -> None:
        self._remove_container()
        _remove_shared_memory(self._plan)
        clear_drains(self._plan.directory)
        self._first_pid = None
        with self._plan.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._plan.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._plan.environ, **drain_environ(self._plan.directory)},
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, _parent_death_signal(self._plan)),
            )
        self._write_state("starting" if self._state.ready_at is None else "restarting",
                   server_pid=self._process.pid)  # fmt: skip

    def _wait_until_ready(self) -> tuple[str, ...] | None:
        """None once every model has generated a token, else why it never will."""
        assert self._process is not None
        deadline_s = time.monotonic() + self._plan.timeout_s
        answered = threading.Event()
        probe: threading.Thread | None = None
        while not self._stopping.wait(self._limits.poll_s):
            if (code := self._find_exit_code()) is not None:
                lines = self._explain()
                return lines if lines and code >= 0 else (_describe_exit(code), *lines)
            if answered.is_set():
                self._parts = find_parts(self._plan, self._find_first_pid())
                return None
            if time.monotonic() > deadline_s:
                return (f"it was not ready after {self._plan.timeout_s:g} s", *self._explain())
            if probe is None or not probe.is_alive():
                # In a thread: an answer that does not come must not keep us from stopping.
                probe = threading.Thread(target=self._probe, args=(answered,), daemon=True)
                probe.start()
        return ()

    def _probe(self, answered: threading.Event) -> None:
        loaded = [model for model in self._plan.text_models if model in self._plan.loading]
        with contextlib.suppress(TllmError):
            for endpoint in (self._plan.endpoint, *self._plan.replicas):
                for model in loaded:
                    probe_token(endpoint, model, self._limits.probe_timeout_s, "http")
            answered.set()

    def _watch(self) -> tuple[str, ...]:
        assert self._process is not None
        may_unload = self._plan.model_control_mode != "none"
        dead: Parts = {}
        while not self._stopping.wait(self._limits.watch_s):
            if (code := self._find_exit_code()) is not None:
                return (_describe_exit(code), *self._explain())
            self._rotate_log()
            if may_unload:
                now = find_parts(self._plan, self._find_first_pid())
                self._parts = update_parts(self._parts, now)
            dead_before, dead = dead, find_dead(self._parts)
            if confirmed := confirm_dead(dead, dead_before) if may_unload else dead:
                if self._plan.runs_mpirun:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(_MPIRUN_ABORT_S)
                if self._has_container_ended():
                    continue
                return (*describe_dead(confirmed), *self._explain())
        return ()

    def _has_container_ended(self) -> bool:
        """Whether all is gone with the container's first process, and how is known by now."""
        first = self._state.server_pid
        if self._plan.container is None or first is None or not is_gone(first):
            return False
        assert self._process is not None
        try:
            self._process.wait(_ATTACHED_END_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _find_exit_code(self) -> int | None:
        """How the server ended by itself, for the state as well; None while it runs."""
        assert self._process is not None
        code = self._process.poll()
        # Of the one in a container, whoever is attached to it says it as a shell does.
        if code is not None and code > 128 and self._plan.container is not None:
            code = 128 - code
        self._state = dataclasses.replace(self._state, exit_code=code)
        return code

    def _rotate_log(self) -> None:
        """Move a log that has grown long aside; Triton goes on appending to the same file."""
        log = self._plan.log
        rotated = log.with_suffix(".log.1")
        # A log that somebody removed, or a full disk, is no reason to lose the server.
        with contextlib.suppress(OSError):
            if log.stat().st_size > self._limits.max_log_bytes:
                try:
                    shutil.copyfile(log, rotated)
                except OSError:  # what there is room for is the log that grows
                    with contextlib.suppress(OSError):
                        rotated.unlink()
                os.truncate(log, 0)
                self._log_start = 0

    def _find_first_pid(self) -> int:
        """Our child, or the first process of the container that it is attached to.

        The container's engine is asked until it knows, and then no more in this life.
        """
        assert self._process is not None
        if self._first_pid is None and self._plan.container is not None:
            self._first_pid = find_first_process(self._plan.container)
        return self._first_pid or self._process.pid

    def _explain(self) -> tuple[str, ...]:
        """What the server that runs or ran last said in its log."""
        return tuple(explain_log(last_lines(self._plan.log, 1000, since=self._log_start)))

    def _end_server(self) -> None:
        """End the server and whatever it started, in order unless a stub is dead."""
        process = self._process
        if process is None:
            return
        tree = list_tree(process.pid)
        if process.poll() is None:
            with draining(self._plan.directory, self._plan.every_model):
                if self._stopping.is_set():
                    self._write_state("stopping")
                self._end_gracefully(process)
        kill_remains(process.pid, tree)
        self._remove_container()
        self._process, self._parts = None, {}

    def _end_gracefully(self, process: subprocess.Popen[bytes]) -> None:
        # With a dead stub Triton's orderly exit only waits for its own time limit.
        may_wait = not find_dead(self._parts) and (
            not self._stopping.is_set() or self._drain(process)
        )
        self._signal_tritons(signal.SIGTERM if may_wait else signal.SIGKILL)
        try:
            process.wait(self._limits.exit_s)
        except subprocess.TimeoutExpired:
            self._kill_server(process)

    def _drain(self, process: subprocess.Popen[bytes]) -> bool:
        """Let requests in flight end; returns whether they did in the time they have."""
        endpoints = (self._plan.endpoint, *self._plan.replicas)
        directory, default_s = self._plan.directory, self._plan.exit_timeout_s
        started_s = time.monotonic()
        for in_flight in watch_in_flight(endpoints, timeout_s=self._limits.metrics_timeout_s):
            if process.poll() is not None:
                break
            if in_flight is not None and in_flight != self._state.in_flight:
                self._write_state("stopping", in_flight=in_flight)
            is_late = time.monotonic() - started_s > read_stop_timeout_s(directory, default_s)
            if in_flight != {} and is_late:
                why = f"requests were cut off: {format_in_flight(in_flight)}"
                self._write_state("stopping", in_flight={}, why=(why,))
                return False
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._limits.poll_s)
        return True

    def _remove_container(self) -> None:
        if self._plan.container is not None:
            remove_container(self._plan.container)

    def _kill_server(self, process: subprocess.Popen[bytes]) -> None:
        """An `mpirun` that is killed leaves its ranks on other nodes, so it is told first."""
        if self._plan.runs_mpirun:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_MPIRUN_EXIT_S)
        process.kill()
        process.wait()

    def _signal_tritons(self, number: signal.Signals) -> None:
        """Tell them ourselves: an `mpirun` that is to end kills its ranks after a second."""
        assert self._process is not None
        if self._plan.container is not None and number == signal.SIGKILL:
            self._remove_container()  # nobody passes this one on
            return
        tritons: list[psutil.Process] = []
        if self._plan.container is None or self._plan.runs_mpirun:
            with contextlib.suppress(psutil.Error):
                tritons = find_tritons(self._plan, self._find_first_pid())
        signalled = [triton for triton in tritons if send_signal(triton, number)]
        if not signalled:
            self._process.send_signal(number)

    def _write_state(self, phase: Phase, **changes: Any) -> None:
        self._state = dataclasses.replace(self._state, phase=phase, **changes)
        write_state(self._plan.directory, self._state)


def _describe_exit(code: int) -> str:
    return f"the server ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"


def _parent_death_signal(plan: LaunchPlan) -> signal.Signals:
    """What our child gets when its supervisor is gone: who has to end others must live to do so."""
    return signal.SIGKILL if plan.mode == "local" else signal.SIGTERM


def _remove_shared_memory(plan: LaunchPlan) -> None:
    """What a server that was killed left behind; the prefix is this server's alone."""
    for path in Path("/dev/shm").glob(f"tllm-{plan.ports['HTTP']}-*"):
        path.unlink(missing_ok=True)


def main() -> None:
    """Supervise the server whose plan lies in the directory given."""
    directory = Path(sys.argv[1])
    plan = LaunchPlan.from_json((directory / PLAN_FILE).read_text(encoding="utf-8"))
    supervisor = Supervisor(plan)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    sys.exit(0 if supervisor.run() else 1)
