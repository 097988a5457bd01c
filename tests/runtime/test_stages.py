"""The stages of a process's start."""

from __future__ import annotations

from trtllm_serve_cli.runtime.stages import StageTimer, stage_fields


def test_stages_follow_one_another() -> None:
    times_s = iter((1.0, 1.5, 3.5, 4.5))
    timer = StageTimer(lambda: next(times_s))
    for stage in ("wait", "load", "wait"):
        timer.end(stage)
    assert timer.durations_s == {"wait": 1.5, "load": 2.0}


def test_fields_of_the_log_line() -> None:
    assert stage_fields(0.25, {"load": 1.23456}) == {
        "started_at": "1970-01-01T00:00:00.250Z",
        "load_s": 1.235,
    }
