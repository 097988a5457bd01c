"""A supervisor whose fake Triton, or a process that writes heartbeats, hangs."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.samples.launch_plans import fake_plan, pids_in
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.server_state import ServerState, read_state
from trtllm_serve_cli.launch.supervisor.hangs.report import REPORT_FILE
from trtllm_serve_cli.launch.supervisor.hangs.watch import pulse_environ
from trtllm_serve_cli.launch.supervisor.restart_policy import RestartPolicy
from trtllm_serve_cli.launch.supervisor.supervisor import Supervisor, SupervisorLimits
from trtllm_serve_cli.runtime.pulse import PulseState, read_pulses
from trtllm_serve_cli.runtime.watch.liveness import HangLimits

pytestmark = pytest.mark.usefixtures("working_directory")

QUICK = SupervisorLimits(
    poll_s=0.02,
    watch_s=0.05,
    restarts=RestartPolicy(first_pause_s=0.02),
    exit_s=0.5,
    hangs=HangLimits(idle_silence_s=0.5, idle_hang_s=1.5, probe_period_s=0.05),
)
# Writes heartbeats as `ROLE MODEL`, and is idle or works on two requests without completing a step.
COUNT = """
import sys, time
from trtllm_serve_cli.runtime.pulse import PulseFile, PulseWriter, register_stacks_signal
role, model, state = sys.argv[1:]
register_stacks_signal()
file = PulseFile(role, model)
pulse = PulseWriter(file.path)
while True:
    {"idle": pulse.beat, "failed": pulse.fail, "busy": lambda: pulse.work(2)}[state]()
    time.sleep(0.05)
"""


@contextmanager
def supervised(plan: LaunchPlan, limits: SupervisorLimits = QUICK) -> Iterator[None]:
    plan.directory.mkdir(parents=True)
    supervisor = Supervisor(plan, limits)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        wait_until(lambda: state_of(plan).phase == "ready")
        yield
    finally:
        supervisor.stop()
        thread.join(60)
    assert [pid for pid in pids_in(plan.log) if not is_gone(pid)] == []


@contextmanager
def counting(
    plan: LaunchPlan, role: str, model: str, state: str
) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, **pulse_environ(plan.directory)}
    command = (sys.executable, "-c", COUNT, role, model, state)
    with (
        plan.log.open("ab") as log,
        subprocess.Popen(command, env=environ, stdout=log, stderr=log) as process,
    ):
        try:
            wait_until(lambda: has_begun(plan, role))
            yield process
        finally:
            process.kill()


def has_begun(plan: LaunchPlan, role: str) -> bool:
    """Return whether a process with this role has written a heartbeat."""
    pulses = read_pulses(plan.directory / "pulses")
    return any(each.role == role and each.state != PulseState.LOADING for each in pulses)


def state_of(plan: LaunchPlan) -> ServerState:
    state = read_state(plan.directory)
    return state or ServerState("starting", 0, 0.0)


def quick_plan(tmp_path: Path, hang_timeout_s: float = 1.5) -> LaunchPlan:
    return dataclasses.replace(fake_plan(tmp_path), hang_timeout_s=hang_timeout_s)


def test_stopped_triton_is_reported_and_restarted(tmp_path: Path) -> None:
    plan = quick_plan(tmp_path)
    with supervised(plan):
        (pid,) = pids_in(plan.log)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state_of(plan).phase == "unresponsive")
        what = f"Triton has not responded on {plan.endpoint.http} for 0.5 s (stopped by a signal)"
        assert state_of(plan).why == (what,)
        wait_until(lambda: (state_of(plan).phase, state_of(plan).restarts) == ("ready", 1))
        assert (state_of(plan).hangs, state_of(plan).why) == (1, (what,))
    report = (plan.directory / REPORT_FILE).read_text()
    assert f"== Hang\n{report.splitlines()[1]}" in report and what in report.splitlines()[1]
    assert f"{pid} stopped" in report
    assert f"E supervisor] {what}; restarting it" in plan.log.read_text()


def test_server_whose_grpc_port_alone_hangs_is_restarted(tmp_path: Path) -> None:
    plan = quick_plan(tmp_path)
    with socket.create_server(("127.0.0.1", plan.ports["gRPC"])), supervised(plan):
        wait_until(lambda: state_of(plan).phase == "unresponsive")
        what = f"Triton has not responded on {plan.endpoint.grpc} for 0.5 s"
        assert state_of(plan).why == (what,)
        wait_until(lambda: state_of(plan).restarts > 0)


def test_server_that_responds_again_is_ready_again(tmp_path: Path) -> None:
    plan = quick_plan(tmp_path, hang_timeout_s=0.0)
    with supervised(plan):
        (pid,) = pids_in(plan.log)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state_of(plan).phase == "unresponsive")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: state_of(plan).phase == "ready")
        assert (state_of(plan).hangs, state_of(plan).restarts) == (0, 0)


def test_engine_without_progress_is_killed_alone_after_it_wrote_its_stacks(tmp_path: Path) -> None:
    plan = quick_plan(tmp_path)
    with supervised(plan), counting(plan, "worker", "m", "busy") as worker:
        what = f"the engine worker of m (process {worker.pid}) has not completed a step for 0.75 s"
        wait_until(lambda: state_of(plan).phase == "unresponsive")
        assert state_of(plan).why == (f"{what}, with 2 requests in flight",)
        assert worker.wait(60) == -signal.SIGKILL
        wait_until(lambda: state_of(plan).phase == "ready")
        assert (state_of(plan).hangs, state_of(plan).restarts) == (1, 0)
    assert "most recent call first" in (plan.directory / REPORT_FILE).read_text()


@pytest.mark.parametrize("role", ["worker", "gateway"])
def test_stopped_process_is_killed_alone(tmp_path: Path, role: str) -> None:
    plan = quick_plan(tmp_path)
    with supervised(plan), counting(plan, role, "m", "idle") as process:
        process.send_signal(signal.SIGSTOP)
        assert process.wait(60) == -signal.SIGKILL
        wait_until(lambda: state_of(plan).phase == "ready")
        assert (state_of(plan).hangs, state_of(plan).restarts) == (1, 0)


def test_server_is_restarted_if_the_process_of_a_model_hangs(tmp_path: Path) -> None:
    plan = quick_plan(tmp_path)
    with supervised(plan), counting(plan, "model", "m", "idle") as model:
        model.send_signal(signal.SIGSTOP)
        wait_until(lambda: (state_of(plan).phase, state_of(plan).restarts) == ("ready", 1))
        what = f"the process of model m (process {model.pid}) has not responded for 0.5 s"
        assert state_of(plan).why == (f"{what} (stopped by a signal)",)


def test_server_without_an_engine_is_not_ready_and_is_restarted(tmp_path: Path) -> None:
    plan = dataclasses.replace(quick_plan(tmp_path), timeout_s=2.0)
    with supervised(plan), counting(plan, "worker", "m", "failed"):
        wait_until(lambda: state_of(plan).phase == "unresponsive")
        what = "the engine worker of m died, and the engine has not been reloaded"
        assert state_of(plan).why == (what,)
        wait_until(lambda: (state_of(plan).phase, state_of(plan).restarts) == ("ready", 1))


def test_server_whose_engine_generates_no_token_is_restarted(tmp_path: Path) -> None:
    """Detect an engine that hangs by a request for a token alone."""
    plan = dataclasses.replace(fake_plan(tmp_path, "mute"), hang_timeout_s=1.5)
    hangs = dataclasses.replace(QUICK.hangs, token_period_s=0.2)
    with supervised(plan, dataclasses.replace(QUICK, hangs=hangs)):
        wait_until(lambda: state_of(plan).phase == "unresponsive")
        assert state_of(plan).why == ("m has not generated a token for 0.75 s",)
        wait_until(lambda: state_of(plan).restarts > 0)


def test_hanging_server_can_be_stopped(tmp_path: Path) -> None:
    plan = dataclasses.replace(quick_plan(tmp_path, hang_timeout_s=0.0), exit_timeout_s=0)
    with supervised(plan):
        psutil.Process(pids_in(plan.log)[0]).suspend()
        wait_until(lambda: state_of(plan).phase == "unresponsive")
    assert state_of(plan).phase == "stopped"
