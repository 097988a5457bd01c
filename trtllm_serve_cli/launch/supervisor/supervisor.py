"""Start a server, wait until it is ready, restart it if it fails, and stop it.

    python -m trtllm_serve_cli.launch.supervisor SERVER_DIRECTORY

While the supervisor runs, it is the only writer of the server's state. If the supervisor exits for
any reason, the server also exits.

After the server has become ready, the supervisor restarts the server if Triton or a model process
dies or hangs. The supervisor monitors the model processes, because Triton still reports that it is
ready after a model process has died. A server that never became ready is not restarted, except once
if Triton aborted because of a lock in its shared memory.

The supervisor removes the server's container, which it finds by name, before and after each run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_serve_cli.launch.logs.rotation import rotate_log
from trtllm_serve_cli.launch.logs.triton_log import explain_log, is_lock_failure
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.server_state import (
    PLAN_FILE,
    Phase,
    describe_supervisor,
    hold_supervisor_lock,
    read_stop_timeout_s,
    write_state,
)
from trtllm_serve_cli.launch.servers.live_status import IN_FLIGHT_TIMEOUT_S, watch_in_flight
from trtllm_serve_cli.launch.start_probe import StartProbe
from trtllm_serve_cli.launch.startup import StartTimes, record_start, summarize_start
from trtllm_serve_cli.launch.supervisor.gateway_process import GatewayProcess
from trtllm_serve_cli.launch.supervisor.hangs.report import report_hang
from trtllm_serve_cli.launch.supervisor.hangs.watch import HangWatch
from trtllm_serve_cli.launch.supervisor.leftovers import (
    prepare_scratch,
    remove_environments,
    remove_scratch,
)
from trtllm_serve_cli.launch.supervisor.reaper import Reaper
from trtllm_serve_cli.launch.supervisor.restart_policy import (
    FailureCounts,
    RestartPolicy,
    choose_pause_s,
    count_failure,
)
from trtllm_serve_cli.launch.supervisor.server_child import ServerChild, remove_container_of
from trtllm_serve_cli.launch.supervisor.server_processes import (
    Parts,
    confirm_dead,
    describe_dead,
    describe_exit,
    find_dead,
    find_parts,
    list_tree,
    update_parts,
)
from trtllm_serve_cli.launch.supervisor.token_hiding import TokenHiding
from trtllm_serve_cli.launch.triton.drain import (
    clear_drains,
    draining,
    format_in_flight,
)
from trtllm_serve_cli.launch.triton.shared_memory import remove_regions
from trtllm_serve_cli.processes import last_lines
from trtllm_serve_cli.runtime.watch.hung_processes import kill_alone
from trtllm_serve_cli.runtime.watch.liveness import (
    HangLimits,
    count_processes,
    describe_silence,
)
from trtllm_serve_cli.runtime.watch.shared_memory import protect_regions
from trtllm_serve_cli.stop_signal import StopSignal


@dataclass(frozen=True, slots=True)
class SupervisorLimits:
    """The intervals, timeouts and limits of a supervisor.

    - `poll_s`: interval between checks of a starting or draining server.
    - `watch_s`: interval between checks of a server that has become ready.
    - `probe_timeout_s`: timeout for each request while the server starts.
    - `restarts`: policy for restarts after failures.
    - `exit_s`: time limit for a drained server to exit before it is killed.
    - `metrics_timeout_s`: timeout for reading the server's metrics. After a timeout, the number of
      requests in flight is unknown.
    - `max_log_bytes`: size above which a log is rotated.
    - `hangs`: time limits for processes that do not respond. The plan overrides `hang_timeout_s`
      and `load_timeout_s`.
    """

    poll_s: float = 0.2
    watch_s: float = 1.0
    probe_timeout_s: float = 60.0
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    exit_s: float = 30.0
    metrics_timeout_s: float = IN_FLIGHT_TIMEOUT_S
    max_log_bytes: int = 64 * 1024 * 1024
    hangs: HangLimits = field(default_factory=HangLimits)


class Supervisor:
    """A supervisor that runs one server until `stop` is called or the server fails permanently."""

    def __init__(self, plan: LaunchPlan, limits: SupervisorLimits = SupervisorLimits()) -> None:
        self._plan = plan
        self._limits = limits
        hang_limits = dataclasses.replace(
            limits.hangs, hang_timeout_s=plan.hang_timeout_s, load_timeout_s=plan.timeout_s
        )
        self._hang_watch = HangWatch(plan, hang_limits)
        self._has_hang = False
        self._ready_s: float | None = None
        self._stopping = StopSignal()
        self._server: ServerChild | None = None
        self._log_start = 0
        self._token_hiding = TokenHiding(plan, 0, self._log)
        self._parts: Parts = {}
        self._gateway = GatewayProcess(plan) if plan.gateway is not None else None
        self._reaper = Reaper(plan.region_prefix)
        self._state = describe_supervisor("starting")
        # Messages about requests that were cancelled because of a stop request.
        self._cancelled: tuple[str, ...] = ()
        # False if the disk does not contain the latest state.
        self._is_saved = True

    def stop(self) -> None:
        """Request a graceful stop and return immediately. Signal handlers can call this method."""
        self._stopping.set()

    def run(self) -> bool:
        """Keep the server running and return whether it ended because of a stop request."""
        policy, counts = self._limits.restarts, FailureCounts()
        is_retried = False
        # Write the state before removing a stale container, because the removal can take a minute.
        # Meanwhile, `tllm status` and `tllm stop` must find the server. Without a state, no command
        # would find it, so do not start the server if this write fails.
        write_state(self._plan.directory, self._state)
        try:
            self._hang_watch.prepare()
            if self._gateway is not None:
                self._gateway.start()
                self._state = dataclasses.replace(self._state, gateway_pid=self._gateway.pid)
            while True:
                self._ready_s = None
                why = self._run_once()
                # Compute this before ending the server, because removing a container can take long.
                ready_for_s = None if self._ready_s is None else time.monotonic() - self._ready_s
                self._end_server()
                if self._stopping.is_set():
                    self._write_state("stopped", server_pid=None, why=self._cancelled)
                    return True
                if self._state.ready_at is None:
                    if not is_retried and is_lock_failure(self._read_log()):
                        is_retried = True
                        self._log("Triton aborted while loading; starting it again")
                        continue
                    self._write_state("failed", server_pid=None, why=why)
                    return False
                counts = count_failure(counts, policy, ready_for_s)
                pause_s = choose_pause_s(counts, policy)
                if pause_s is None:
                    self._write_state("failed", server_pid=None, why=why)
                    return False
                restarts = self._state.restarts + 1
                self._write_state("restarting", server_pid=None, why=why, restarts=restarts)
                self._log(f"the server failed; restarting it in {pause_s:g} s")
                self._stopping.wait(pause_s)
        finally:
            self._end_server()
            if self._gateway is not None:
                self._gateway.end()
            remove_regions(self._plan.region_prefix)
            remove_scratch(self._plan.directory)
            remove_environments()
            self._reaper.end()
            self._save_state()

    def _run_once(self) -> tuple[str, ...]:
        """Run the server until it fails or a stop is requested.

        The server fails if it does not become ready, if it exits, or if one of its processes dies
        or hangs. Return the reasons for the failure, or an empty tuple after a stop request.
        """
        if self._stopping.is_set():
            return ()
        try:
            server = self._spawn()
        except OSError as error:
            return (f"{self._plan.argv[0]} could not be started: {self._explain_error(error)}",)
        why = self._wait_until_ready(server)
        if why is None:
            self._ready_s = time.monotonic()
            self._write_state("ready", ready_at=time.time(), server_pid=server.find_first_pid())
            why = self._watch(server)
        return why

    def _spawn(self) -> ServerChild:
        remove_container_of(self._plan)
        remove_regions(self._plan.region_prefix)
        clear_drains(self._plan.directory)
        prepare_scratch(self._plan.directory)
        remove_environments()
        self._hang_watch.prepare()
        self._has_hang = False
        self._server = server = ServerChild(self._plan)
        self._log_start = server.log_start
        self._token_hiding = TokenHiding(self._plan, self._log_start, self._log)
        self._reaper.guard(server.pid)
        phase: Phase = "starting" if self._state.ready_at is None else "restarting"
        self._write_state(phase, server_pid=server.pid)
        return server

    def _wait_until_ready(self, server: ServerChild) -> tuple[str, ...] | None:
        """Wait until the server is ready.

        The server is ready when every loaded text model has responded, the gateway is healthy and
        the warm-up has finished. Return None if the server is ready, the reasons if the start
        failed, or an empty tuple after a stop request.
        """
        deadline_s = time.monotonic() + self._plan.timeout_s
        spawned_at = time.time()
        probe = StartProbe(self._plan, self._limits.probe_timeout_s)
        if self._gateway is not None:
            probe.is_gateway_healthy = self._gateway.is_healthy
        thread: threading.Thread | None = None
        while not self._stopping.wait(self._limits.poll_s):
            if (code := self._find_exit_code(server)) is not None:
                lines = self._explain()
                how = f"the server {describe_exit(code)}"
                return lines if lines and code >= 0 else (how, *lines)
            if self._gateway is not None and (why := self._gateway.explain_exit()):
                if self._state.ready_at is None:
                    return why
                self._restart_gateway()
            self._record_container_pid(server)
            self._save_state()
            self._token_hiding.hide(server.pid)
            protect_regions(self._plan.region_prefix)
            if probe.is_ready.is_set():
                self._record_start(spawned_at, probe)
                self._parts = find_parts(self._plan, server.find_first_pid())
                return None
            if time.monotonic() > deadline_s:
                return (
                    f"the server was not ready after {self._plan.timeout_s:g} s",
                    *probe.problems,
                    *self._explain(),
                    *self._explain_gateway(),
                )
            if thread is None or not thread.is_alive():
                # Probe in a thread, so that a stop request does not have to wait for the response.
                thread = threading.Thread(target=probe.run, daemon=True)
                thread.start()
        return ()

    def _log(self, message: str) -> None:
        """Append a warning to the server's log."""
        with contextlib.suppress(OSError), self._plan.log.open("a", encoding="utf-8") as log:
            log.write(f"W supervisor] {message}\n")

    def _record_start(self, spawned_at: float, probe: StartProbe) -> None:
        assert probe.first_token_at is not None
        for each in probe.problems:
            self._log(each)
        times = StartTimes(spawned_at, probe.first_token_at, time.time(), probe.warmup_at)
        why = () if self._state.ready_at is None else self._state.why
        start = summarize_start(
            self._plan,
            times,
            why,
            log=last_lines(self._plan.log, 1000, since=self._log_start),
            gateway_log=last_lines(self._plan.gateway_log, 1000),
            problems=probe.problems,
        )
        record_start(self._plan.directory, start)

    def _watch(self, server: ServerChild) -> tuple[str, ...]:
        may_unload = self._plan.model_control_mode != "none"
        dead: Parts = {}
        self._hang_watch.begin()
        while not self._stopping.wait(self._limits.watch_s):
            if (code := self._find_exit_code(server)) is not None:
                return (f"the server {describe_exit(code)}", *self._explain())
            self._rotate_logs()
            self._save_state()
            self._token_hiding.hide(server.pid)
            protect_regions(self._plan.region_prefix)
            self._restart_gateway()
            if may_unload:
                now = find_parts(self._plan, server.find_first_pid())
                self._parts = update_parts(self._parts, now)
            dead_before, dead = dead, find_dead(self._parts)
            if confirmed := confirm_dead(dead, dead_before) if may_unload else dead:
                if server.has_ended_after_death():
                    continue
                return (*describe_dead(confirmed), *self._explain())
            if why := self._check_hangs(server):
                return why
        return ()

    def _check_hangs(self, server: ServerChild) -> tuple[str, ...]:
        """Record unresponsive parts of the server and report hung parts.

        Kill hung engine workers and gateways, which are restarted separately. If another part
        hangs, return the reasons to restart the server, otherwise an empty tuple.
        """
        silent = self._hang_watch.observe(server.find_first_pid())
        messages = tuple(describe_silence(each) for each in silent)
        if silent and (self._state.phase, self._state.why) != ("unresponsive", messages):
            self._write_state("unresponsive", why=messages)
        elif not silent and self._state.phase == "unresponsive":
            self._write_state("ready")
        if not (hanging := [each for each in silent if each.is_hang]):
            return ()
        self._write_state("unresponsive", hangs=self._state.hangs + count_processes(hanging))
        report_hang(self._plan, hanging, server.list_processes())
        killed = [each for each in hanging if kill_alone(each)]
        for silence in killed:
            self._hang_watch.forget(silence)
        self._has_hang = len(killed) < len(hanging)
        return messages if self._has_hang else ()

    def _restart_gateway(self) -> None:
        """Restart the gateway if it has died and its back-off has elapsed.

        Record the process ID and the number of restarts in the server's state.
        """
        if self._gateway is not None and self._gateway.restart_if_dead():
            self._write_state(
                self._state.phase,
                gateway_pid=self._gateway.pid,
                gateway_restarts=self._gateway.num_restarts,
            )

    def _find_exit_code(self, server: ServerChild) -> int | None:
        """Record and return the server's exit code, or None while the server is running."""
        code = server.find_exit_code()
        self._state = dataclasses.replace(self._state, exit_code=code)
        return code

    def _rotate_logs(self) -> None:
        if rotate_log(self._plan.log, self._limits.max_log_bytes):
            self._log_start = 0
        if self._gateway is not None:
            rotate_log(self._plan.gateway_log, self._limits.max_log_bytes)

    def _record_container_pid(self, server: ServerChild) -> None:
        """Record the process ID of the container's first process.

        The gateway needs this ID even before the server is ready, to find the engine workers.
        """
        if (pid := server.find_first_pid()) != self._state.server_pid:
            self._write_state(self._state.phase, server_pid=pid)

    def _explain(self) -> tuple[str, ...]:
        """Return the causes of a failure, as logged during the current or last run."""
        return tuple(explain_log(self._read_log()))

    def _read_log(self) -> list[str]:
        """Return the last lines that were logged during the current or last run."""
        return last_lines(self._plan.log, 1000, since=self._log_start)

    def _explain_gateway(self) -> tuple[str, ...]:
        """Return why the gateway was not healthy at the last check.

        Return an empty tuple if the check found no problem, or if the server has no gateway.
        """
        if self._gateway is None or not self._gateway.problem:
            return ()
        return (f"OpenAI-compatible gateway: {self._gateway.problem}",)

    def _end_server(self) -> None:
        """Stop the server and all its processes.

        Kill the server if one of its processes hangs or has died, or if requests are still in
        flight after the stop timeout. Otherwise, stop the server gracefully.
        """
        server = self._server
        if server is None:
            return
        tree = list_tree(server.pid)
        if server.find_exit_code() is None:
            with draining(self._plan.directory, self._plan.every_model):
                if self._stopping.is_set():
                    # Clear the reasons for earlier failures.
                    self._write_state("stopping", why=())
                    if self._gateway is not None:
                        self._gateway.begin_stop()
                self._end_gracefully(server)
        server.remove_remains(tree)
        self._server, self._parts = None, {}

    def _end_gracefully(self, server: ServerChild) -> None:
        # Send SIGKILL if a process hangs or has died, or if requests are still in flight. In these
        # cases, Triton would exit only after its exit timeout.
        may_wait = not (self._has_hang or find_dead(self._parts)) and (
            not self._stopping.is_set() or self._drain(server)
        )
        server.end(self._parts, self._limits.exit_s, is_graceful=may_wait)

    def _drain(self, server: ServerChild) -> bool:
        """Wait for requests in flight and return whether they finished within the stop timeout.

        Return True if the server exits during the wait.
        """
        endpoints = (self._plan.endpoint, *self._plan.replicas)
        directory, default_s = self._plan.directory, self._plan.exit_timeout_s
        started_s = time.monotonic()
        for in_flight in watch_in_flight(endpoints, timeout_s=self._limits.metrics_timeout_s):
            if server.find_exit_code() is not None:
                break
            if in_flight is not None and in_flight != self._state.in_flight:
                self._write_state("stopping", in_flight=in_flight)
            is_late = time.monotonic() - started_s > read_stop_timeout_s(directory, default_s)
            if in_flight != {} and is_late:
                self._cancelled = (f"requests were cancelled: {format_in_flight(in_flight)}",)
                self._write_state("stopping", in_flight={}, why=self._cancelled)
                return False
            server.wait(self._limits.poll_s)
        return True

    def _explain_error(self, error: OSError) -> str:
        """Return the reason for an error, with the path unless it is the program's."""
        is_about_file = error.filename not in (None, self._plan.argv[0])
        return f"{error.filename}: {error.strerror}" if is_about_file else str(error.strerror)

    def _write_state(self, phase: Phase, **changes: Any) -> None:
        self._state = dataclasses.replace(self._state, phase=phase, **changes)
        self._is_saved = False
        self._save_state()

    def _save_state(self) -> None:
        """Write the latest state unless the disk contains it.

        A disk error must not stop a server that works. The supervisor tries again at its next check
        and when it ends.
        """
        if not self._is_saved:
            with contextlib.suppress(OSError):
                write_state(self._plan.directory, self._state)
                self._is_saved = True


def main() -> None:
    """Supervise the server in the folder that is passed as the first argument.

    Exit with code 0 after a stop request, or with code 1 if the server fails permanently.
    """
    directory = Path(sys.argv[1])
    hold_supervisor_lock(directory)
    plan = LaunchPlan.from_json((directory / PLAN_FILE).read_text(encoding="utf-8"))
    supervisor = Supervisor(plan)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    sys.exit(0 if supervisor.run() else 1)
