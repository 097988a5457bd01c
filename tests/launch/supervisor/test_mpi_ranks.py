"""A supervisor whose server has several MPI ranks, with the real `mpirun`."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.launch.supervising import QUICK, is_in, supervised
from tests.samples.launch_plans import fake_mpi_plan
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.server_state import PLAN_FILE, read_state

pytestmark = pytest.mark.usefixtures("working_directory")

needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="no mpirun (apt-get install openmpi-bin)"
)


@needs_mpirun
def test_ranks_become_ready_together_and_stop_gracefully(tmp_path: Path) -> None:
    plan = fake_mpi_plan(tmp_path)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        ranks = find_ranks(plan)
        assert sorted(ranks) == ["0", "1"]
    # On SIGTERM, mpirun would log that it kills its ranks.
    assert (is_in(plan, "stopped"), "mpirun" in plan.log.read_text()) == (True, False)
    assert all(is_gone(each.pid) for each in ranks.values())


@needs_mpirun
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_that_lost_a_rank_is_restarted(tmp_path: Path, number: signal.Signals) -> None:
    plan = fake_mpi_plan(tmp_path)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        before = find_ranks(plan)
        before["1"].send_signal(number)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        why = read_state(plan.directory).why
        assert len(find_ranks(plan)) == 2
    assert f"rank 1 (process {before['1'].pid}) died" in why
    assert is_gone(before["0"].pid)


@needs_mpirun
def test_ranks_of_a_killed_mpirun_are_killed(tmp_path: Path) -> None:
    plan = fake_mpi_plan(tmp_path, "child")
    # `mpirun` also waits for the children, which keep their ranks' output open.
    with supervised(plan, dataclasses.replace(QUICK, exit_s=1)):
        wait_until(lambda: is_in(plan, "ready"))
        mpirun = psutil.Process(read_state(plan.directory).server_pid)
        processes = mpirun.children(recursive=True)
        assert len(processes) == 4
        mpirun.kill()
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert all(is_gone(each.pid) for each in processes)


@needs_mpirun
def test_ranks_die_with_their_supervisor(tmp_path: Path) -> None:
    plan = fake_mpi_plan(tmp_path)
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    command = (
        sys.executable,
        "-m",
        "trtllm_serve_cli.launch.supervisor",
        str(plan.directory),
    )
    with subprocess.Popen(command) as supervisor:
        wait_until(lambda: is_in(plan, "ready"))
        ranks = find_ranks(plan)
        supervisor.kill()
    wait_until(lambda: all(is_gone(each.pid) for each in ranks.values()))


def find_ranks(plan: LaunchPlan) -> dict[str, psutil.Process]:
    """Find the ranks' processes; in the log, mpirun may join lines of two ranks."""
    mpirun = psutil.Process(read_state(plan.directory).server_pid)
    return {each.environ()["OMPI_COMM_WORLD_RANK"]: each for each in mpirun.children()}
