"""Compute a server's launch plan again from its original options and the current model files."""

from __future__ import annotations

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan, LaunchRequest
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.paths import Home


def replan(home: Home, server: RunningServer) -> LaunchPlan:
    """Return a new launch plan for `server`, with its original options and the current model files.

    Raise `BadInput` if the server is a Slurm job. Also raise the same exceptions as
    `plan_for_this_machine`.
    """
    if server.job is not None:
        raise BadInput(
            f"{server.location} cannot be restarted.",
            why="`tllm restart` does not support Slurm jobs",
            next_step=f"run `{server.stop_command}`, then run "
            f"`{server.restart_command}` with the options from the batch script "
            f"{server.plan.argv[-1]}",
        )
    request = server.plan.request or LaunchRequest(server.models, (), {})
    return plan_for_this_machine(
        home, request.models, request.overrides, repositories=request.repositories
    )
