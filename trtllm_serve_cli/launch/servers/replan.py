"""Plan a server that has run before, as it was requested and as its models are now."""

from __future__ import annotations

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan, LaunchRequest
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.paths import Home


def replan(home: Home, server: RunningServer) -> LaunchPlan:
    """How to serve what `server` serves, as it was asked for and as the models are now.

    Raises `BadInput` for a job, and as `plan_for_this_machine` does.
    """
    if server.job is not None:
        raise BadInput(
            f"{server.location} cannot be started again from here.",
            why="it is a job of Slurm's; what it was submitted with stands in "
            f"{server.plan.argv[-1]}",
            next_step=f"tllm stop -m {server.models[0]}, and {server.restart_command} …",
        )
    request = server.plan.request or LaunchRequest(server.models, (), {})
    return plan_for_this_machine(
        home, request.models, request.overrides, repositories=request.repositories
    )
