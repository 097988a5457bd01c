"""A supervisor whose server runs in a container, with a fake container engine."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from tests.fakes.container_engines import calls_of, write_engine
from tests.launch.supervising import QUICK, crash, is_in, supervised
from tests.samples.launch_plans import fake_container_plan, pids_in
from tests.waiting import wait_until
from trtllm_serve_cli.launch.server_state import read_state

pytestmark = pytest.mark.usefixtures("working_directory")


def test_container_is_removed_before_and_after_each_run(tmp_path: Path, podman: Path) -> None:
    plan = fake_container_plan(tmp_path, podman, "crash")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert read_state(plan.directory).why == ("the server was terminated by signal 11",)
    lines = podman.with_name("podman.calls").read_text().splitlines()
    commands = [line.split()[0] for line in lines if not line.startswith("inspect")]
    assert commands == ["rm", "run", "rm", "rm", "run", "rm"]
    assert set(calls_of(podman, "rm")) == {f"rm --force --time=0 --ignore {plan.container.name}"}


def test_server_is_starting_while_an_old_container_is_removed(tmp_path: Path, podman: Path) -> None:
    plan, release = fake_container_plan(tmp_path, podman), tmp_path / "may-go"
    waits = f"while [ ! -e {release} ]; do sleep 0.05; done"
    write_engine(podman.parent, "podman", rm=waits)
    with supervised(plan) as supervisor:
        wait_until(lambda: is_in(plan, "starting"))
        assert read_state(plan.directory).server_pid is None
        supervisor.stop()
        release.touch()
    assert is_in(plan, "stopped")


def test_exit_code_above_128_of_a_container_is_a_signal(tmp_path: Path, podman: Path) -> None:
    """The attached client exits with 128 plus the number of the signal."""
    write_engine(podman.parent, "podman", run='shift 4; "$@"; exit $((128 + 9))')
    plan = fake_container_plan(tmp_path, podman, "brief")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "restarting", restarts=1))
        assert read_state(plan.directory).why == ("the server was terminated by signal 9",)


def test_model_that_ends_with_its_container_is_not_blamed(tmp_path: Path, podman: Path) -> None:
    """All processes in the container end before the attached client reports the exit code."""
    run = (
        'while [ "$1" != img ]; do shift; done; shift; "$@" & echo $! > "$0.pid"; '
        "wait $!; sleep 1; exit 137"
    )
    write_engine(podman.parent, "podman", run=run, inspect='cat "$0.pid"')
    plan = fake_container_plan(tmp_path, podman, "model")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        for what in ("server", "model"):
            os.kill(pids_in(plan.log, what)[0], signal.SIGKILL)
        wait_until(lambda: is_in(plan, "restarting", restarts=1))
        assert read_state(plan.directory).why == ("the server was terminated by signal 9",)


def test_attached_client_forwards_the_stop_to_the_container(tmp_path: Path, podman: Path) -> None:
    plan = fake_container_plan(tmp_path, podman)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
    assert is_in(plan, "stopped")


def test_process_in_the_container_is_recorded_before_the_server_is_ready(
    tmp_path: Path, podman: Path
) -> None:
    """The gateway connects to the engine worker of this process."""
    run = 'while [ "$1" != img ]; do shift; done; shift; "$@" & echo $! > "$0.pid"; wait $!'
    write_engine(podman.parent, "podman", run=run, inspect='cat "$0.pid"')
    plan = fake_container_plan(tmp_path, podman, "silent")
    with supervised(plan):
        wait_until(lambda: pids_in(plan.log))
        wait_until(lambda: [read_state(plan.directory).server_pid] == pids_in(plan.log))
        assert is_in(plan, "starting")


def test_container_engine_is_queried_only_until_it_reports_the_process(
    tmp_path: Path, podman: Path
) -> None:
    # exec replaces the fake podman by the fake Triton.
    write_engine(podman.parent, "podman", run='echo $$ > "$0.pid"; shift 4; exec "$@"',
                 inspect='cat "$0.pid"')  # fmt: skip
    plan = dataclasses.replace(
        fake_container_plan(tmp_path, podman, "crash"), model_control_mode="explicit"
    )
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        assert [read_state(plan.directory).server_pid] == pids_in(plan.log)
        num_queries = len(calls_of(podman, "inspect"))
        time.sleep(10 * QUICK.watch_s)
        assert len(calls_of(podman, "inspect")) == num_queries
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert read_state(plan.directory).server_pid == pids_in(plan.log)[-1]
