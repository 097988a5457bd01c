"""Run a supervisor with short timeouts, or launch a server with one."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.samples.launch_plans import pids_in
from tests.waiting import is_gone
from trtllm_serve_cli.client.ask import generate
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.errors import LaunchFailed, NoServer
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.server_state import ServerState, read_state
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.restart_policy import RestartPolicy
from trtllm_serve_cli.launch.supervisor.supervisor import Supervisor, SupervisorLimits

QUICK_RESTARTS = RestartPolicy(first_pause_s=0.02, max_pause_s=0.04, max_failed_starts=3)
QUICK = SupervisorLimits(poll_s=0.02, watch_s=0.02, restarts=QUICK_RESTARTS)
WITH_LONG_PAUSES = dataclasses.replace(
    QUICK, restarts=RestartPolicy(first_pause_s=3600.0, max_pause_s=3600.0)
)


@contextmanager
def supervised(plan: LaunchPlan, limits: SupervisorLimits = QUICK) -> Iterator[Supervisor]:
    """Run a supervisor; assert that none of its servers is left at the end."""
    plan.directory.mkdir(parents=True, exist_ok=True)
    supervisor = Supervisor(plan, limits)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()
        thread.join(60)
    assert [pid for pid in pids_in(plan.log) if not is_gone(pid)] == []


def run_to_the_end(plan: LaunchPlan, limits: SupervisorLimits = QUICK) -> tuple[bool, ServerState]:
    plan.directory.mkdir(parents=True)
    was_requested = Supervisor(plan, limits).run()
    state = read_state(plan.directory)
    assert state is not None
    assert [pid for pid in pids_in(plan.log) if not is_gone(pid)] == []
    return was_requested, state


def is_in(plan: LaunchPlan, phase: str, restarts: int = 0) -> bool:
    state = read_state(plan.directory)
    return state is not None and (state.phase, state.restarts) == (phase, restarts)


def crash(plan: LaunchPlan) -> None:
    with pytest.raises(NoServer):
        generate(plan.endpoint, "m", GenerateRequest("crash"), "http")


def start(plan: LaunchPlan) -> RunningServer:
    return launch(plan, on_progress=lambda loading: None)


def start_and_fail(plan: LaunchPlan) -> None:
    with pytest.raises(LaunchFailed):
        start(plan)
