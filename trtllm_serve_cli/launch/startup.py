"""Record how long each stage of a server's startup took.

The record contains the last two starts. Model load times come from Triton's log, whose timestamps
are in UTC. The engine workers and the gateway log their own stages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.launch.logs.start_lines import ReportedStart, read_start_lines
from trtllm_serve_cli.launch.logs.triton_log import TRITON_PREFIX
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.paths import write_text
from trtllm_serve_cli.runtime.stages import GATEWAY_READY, WORKER_READY

STARTUP_FILE = "startup.json"
_NUM_STARTS = 2
_DAY_S = 24 * 60 * 60
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d(?:\.\d+)?)")
_LOAD = "load "
_LOADING = re.compile(r"\bloading: (.+):\d+\"?$")
_LOADED = re.compile(r"successfully loaded '([^']+)'")


@dataclass(frozen=True, slots=True)
class Stage:
    """A startup stage. `begin_s` is the time since Triton's process was started.

    Stages can overlap, because models are loaded in parallel.
    """

    name: str
    begin_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class StartTimes:
    """The supervisor's timestamps for a start, in seconds since the epoch.

    - `spawned_at`: when Triton's process was started.
    - `first_token_at`: when all loaded text models had responded.
    - `ready_at`: when the gateway was also ready and the warm-up had finished.
    - `warmup_at`: when the warm-up began, or None without a warm-up.
    """

    spawned_at: float
    first_token_at: float
    ready_at: float
    warmup_at: float | None = None


@dataclass(frozen=True, slots=True)
class Startup:
    """A server start.

    - `started_at`: when Triton's process was started, in seconds since the epoch.
    - `total_s`: time from `started_at` until the server was ready, in seconds.
    - `why`: reasons for a restart, or empty for a first start.
    - `problems`: a message for each failed warm-up request.
    """

    models: tuple[str, ...]
    started_at: float
    total_s: float
    stages: tuple[Stage, ...]
    why: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def summarize_start(
    plan: LaunchPlan,
    times: StartTimes,
    why: tuple[str, ...],
    *,
    log: Sequence[str],
    gateway_log: Sequence[str] = (),
    problems: tuple[str, ...] = (),
) -> Startup:
    """Return the record of a start, with stages derived from `times` and the log lines.

    `log` and `gateway_log` contain the last lines of the logs. `why` and `problems` are fields of
    `Startup`.
    """
    loads = _parse_loads(log, times.spawned_at)
    first_token_s = times.first_token_at - times.spawned_at
    total_s = times.ready_at - times.spawned_at
    launched_s = min((stage.begin_s for stage in loads), default=0.0)
    loaded_s = max((stage.begin_s + stage.duration_s for stage in loads), default=0.0)
    stages = [_stage("launch Triton", 0.0, launched_s)] if loads else []
    workers = {each.model: each for each in read_start_lines(log, WORKER_READY)}
    for load in loads:
        stages.append(load)
        if (worker := workers.get(load.name.removeprefix(_LOAD))) is not None:
            stages += _list_stages(worker, worker.model, times.spawned_at)
    # The gateway is ready when every process serves every model, so list only the stages of the
    # process that finished last.
    if gateway_starts := list(read_start_lines(gateway_log, GATEWAY_READY)):
        slowest = max(gateway_starts, key=lambda each: each.ended_at)
        stages += _list_stages(slowest, "gateway", times.spawned_at)
    stages.append(_stage("first token", loaded_s, first_token_s))
    warmup_s = total_s if times.warmup_at is None else times.warmup_at - times.spawned_at
    if plan.gateway is not None:
        stages.append(_stage("gateway ready", first_token_s, warmup_s))
    if times.warmup_at is not None:
        stages.append(_stage("warm-up", warmup_s, total_s))
    return Startup(plan.models, times.spawned_at, round(total_s, 3), tuple(stages), why, problems)


def _list_stages(start: ReportedStart, process: str, spawned_at: float) -> list[Stage]:
    """Return the stages that a process reported, except those that ended before Triton started."""
    stages = []
    begin_s = start.started_at - spawned_at
    for name, duration_s in start.stages_s.items():
        end_s = begin_s + duration_s
        if end_s > 0:
            stages.append(_stage(f"{process}: {name}", max(begin_s, 0.0), end_s))
        begin_s = end_s
    return stages


def _parse_loads(log: Iterable[str], spawned_at: float) -> list[Stage]:
    """Return a stage for each loaded model, in the order in which loading began."""
    begins: dict[str, float] = {}
    ends: dict[str, float] = {}
    for line in log:
        prefix = TRITON_PREFIX.match(line)
        clock = _TIME.search(prefix[0]) if prefix else None
        if clock is None:
            continue
        if loading := _LOADING.search(line):
            begins[loading[1]] = _seconds_since(spawned_at, clock)
        elif loaded := _LOADED.search(line):
            ends[loaded[1]] = _seconds_since(spawned_at, clock)
    return [
        _stage(f"{_LOAD}{name}", begin_s, ends[name])
        for name, begin_s in begins.items()
        if name in ends
    ]


def _seconds_since(spawned_at: float, clock: re.Match[str]) -> float:
    """Return the seconds from `spawned_at` to the nearest occurrence of a time of day in UTC."""
    time_of_day_s = int(clock[1]) * 3600 + int(clock[2]) * 60 + float(clock[3])
    return (time_of_day_s - spawned_at + _DAY_S / 2) % _DAY_S - _DAY_S / 2


def _stage(name: str, begin_s: float, end_s: float) -> Stage:
    return Stage(name, round(begin_s, 3), round(max(end_s - begin_s, 0.0), 3))


def record_start(directory: Path, startup: Startup) -> None:
    """Record a server start in `directory` and keep the record of the previous start."""
    starts = [startup, *read_starts(directory)][:_NUM_STARTS]
    text = json.dumps([dataclasses.asdict(each) for each in starts], indent=2)
    # If the disk is full, continue without the record.
    with contextlib.suppress(OSError):
        write_text(directory / STARTUP_FILE, text)


def read_starts(directory: Path) -> list[Startup]:
    """Return the recorded starts, newest first, or [] if the record is missing or not valid."""
    try:
        starts = json.loads((directory / STARTUP_FILE).read_text(encoding="utf-8"))
        return [
            Startup(
                tuple(each["models"]),
                each["started_at"],
                each["total_s"],
                tuple(Stage(**stage) for stage in each["stages"]),
                tuple(each["why"]),
                tuple(each.get("problems", ())),
            )
            for each in starts
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
