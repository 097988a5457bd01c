"""Plans of servers that are restarted."""

from __future__ import annotations

import dataclasses

import pytest

from tests.samples.launch_plans import fake_plan
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.clusters.slurm_job import SlurmJob
from trtllm_serve_cli.launch.server_state import ServerState
from trtllm_serve_cli.launch.servers.replan import replan
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.paths import Home


def test_slurm_job_cannot_be_restarted(home: Home) -> None:
    plan = dataclasses.replace(fake_plan(home.servers), argv=("sbatch", "/jobs/job.sbatch"))
    job = RunningServer(home.servers, plan, ServerState("ready", 0, 0.0), SlurmJob("12", "RUNNING"))
    with pytest.raises(BadInput) as raised:
        replan(home, job)
    assert str(raised.value) == (
        "Slurm job 12 cannot be restarted.\n"
        "Why: `tllm restart` does not support Slurm jobs\n"
        "Next: run `tllm stop -m m`, then run `tllm deploy slurm -m m --submit` with the options "
        "from the batch script /jobs/job.sbatch"
    )
