"""Plan the program that monitors Triton in a Slurm job, and read the recorded state."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.launch.clusters.server_watch import limit_words, watch_command
from trtllm_serve_cli.launch.containers.deployment import Deployable
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.server_state import STATE_FILE
from trtllm_serve_cli.runtime.watch.liveness import HangLimits

# The folder in which the job records the server's state for `tllm status` and the gateway.
STATE_FOLDER = "state"
# Time limit, in seconds, for reloading an engine that has died. During the reload, `tllm status`
# reports the server as unresponsive. The limit is high, because the job fails if the limit is
# exceeded, and a job that is submitted again may have to wait in the queue.
_LOAD_TIMEOUT_S = 1800.0


def plan_job_watch(model: Deployable, launch: LaunchOptions, regions: str) -> tuple[str, ...]:
    """Return the shell words that precede Triton's command in a task.

    `regions` is the name prefix of the task's shared memory regions, as a shell word. Return an
    empty tuple if the model was imported with an earlier version of tllm, or if Triton's vLLM
    backend runs the engine.
    """
    if model.runtime is None:
        return ()
    limits = HangLimits(hang_timeout_s=launch.hang_timeout_s, load_timeout_s=_LOAD_TIMEOUT_S)
    return (
        *map(shlex.quote, watch_command(model.runtime, "job_server")),
        '--rank="$SLURM_PROCID"',
        f"--regions={regions}",
        '--state="$TLLM_STATE"/state.json',
        '--pulses="$TLLM_PULSES"',
        '--http=127.0.0.1:"$TLLM_HTTP_PORT"',
        '--metrics=127.0.0.1:"$TLLM_METRICS_PORT"',
        *map(shlex.quote, limit_words(model, limits)),
        "--",
    )


@dataclass(frozen=True, slots=True)
class WatchRecord:
    """The state that a job has recorded.

    - `phase`: the server phase, or "" if the job has not recorded a state.
    - `why`: lines that explain the phases "unresponsive" and "failed".
    - `hangs`: number of processes that have hung.
    """

    phase: str = ""
    why: tuple[str, ...] = ()
    hangs: int = 0


def read_watch_record(directory: Path) -> WatchRecord:
    """Return the state that the job in `directory` has recorded.

    Return an empty record if the state file is missing or does not contain a valid state.
    """
    try:
        text = (directory / STATE_FOLDER / STATE_FILE).read_text(encoding="utf-8")
        state = json.loads(text)
        return WatchRecord(state["phase"], tuple(state["why"]), state["hangs"])
    except (OSError, ValueError, KeyError, TypeError):
        return WatchRecord()
