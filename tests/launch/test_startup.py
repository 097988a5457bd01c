"""The stages of a start, and their record."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.samples.launch_plans import fake_plan
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.startup import (
    STARTUP_FILE,
    Stage,
    StartTimes,
    Startup,
    read_starts,
    record_start,
    summarize_start,
)
from trtllm_serve_cli.runtime.stages import GATEWAY_READY, WORKER_READY

LOG = """\
I1123 00:00:00.500000 7 model_lifecycle.cc:472] "loading: m:1"
I1123 00:00:00.600000 7 model_lifecycle.cc:472] "loading: n:12"
loading: this line has no prefix of Triton
I1123 00:00:02.500000 7 model_lifecycle.cc:839] "successfully loaded 'n'"
I1123 00:00:03.000000 7 model_lifecycle.cc:839] "successfully loaded 'm'"
I1123 00:00:03.100000 7 model_lifecycle.cc:472] "loading: still_loading:1"
"""
ISO_LOG = """\
2026-11-23T00:00:00.500Z I 7 model_lifecycle.cc:472] "loading: m:1"
2026-11-23T00:00:03Z I 7 model_lifecycle.cc:839] "successfully loaded 'm'"
"""
REPORTED = "started_at={}Z start_program_s={} load_s={}"
# One second before midnight in UTC.
TIMES = StartTimes(86399.0, 86404.0, 86404.5)


def test_stages_of_a_start_over_midnight(tmp_path: Path) -> None:
    start = summarize_start(fake_plan(tmp_path), TIMES, ("it died",), log=LOG.splitlines())
    assert start == Startup(
        ("m",),
        86399.0,
        5.5,
        (
            Stage("launch Triton", 0.0, 1.5),
            Stage("load m", 1.5, 2.5),
            Stage("load n", 1.6, 1.9),
            Stage("first token", 4.0, 1.0),
        ),
        ("it died",),
    )


def test_gateway_is_the_last_stage(tmp_path: Path) -> None:
    plan = dataclasses.replace(fake_plan(tmp_path), gateway=GatewayConfig(()))
    assert summarize_start(plan, TIMES, (), log=()).stages == (
        Stage("first token", 0.0, 5.0),
        Stage("gateway ready", 5.0, 0.5),
    )


def test_warm_up_is_the_last_stage(tmp_path: Path) -> None:
    plan = dataclasses.replace(fake_plan(tmp_path), gateway=GatewayConfig(()))
    times = dataclasses.replace(TIMES, warmup_at=86404.1)
    start = summarize_start(plan, times, (), log=(), problems=("it failed",))
    assert start.stages == (
        Stage("first token", 0.0, 5.0),
        Stage("gateway ready", 5.0, 0.1),
        Stage("warm-up", 5.1, 0.4),
    )
    assert start.problems == ("it failed",)


def test_stages_that_the_worker_and_the_slowest_model_of_the_gateway_report(tmp_path: Path) -> None:
    worker = REPORTED.format("1970-01-02T00:00:00.250", 0.25, 1.5)
    gateway = [
        f"{GATEWAY_READY} model=slow {REPORTED.format('1970-01-01T23:59:58', 1.5, 4)}",
        f"{GATEWAY_READY} model=fast {REPORTED.format('1970-01-01T23:59:58', 1.5, 3)}",
    ]
    log = [*LOG.splitlines(), f"I m] {WORKER_READY} {worker}", f"I other] {WORKER_READY} {worker}"]
    start = summarize_start(fake_plan(tmp_path), TIMES, (), log=log, gateway_log=gateway)
    assert start.stages == (
        Stage("launch Triton", 0.0, 1.5),
        Stage("load m", 1.5, 2.5),
        Stage("m: start program", 1.25, 0.25),
        Stage("m: load", 1.5, 1.5),
        Stage("load n", 1.6, 1.9),
        Stage("gateway: start program", 0.0, 0.5),
        Stage("gateway: load", 0.5, 4.0),
        Stage("first token", 4.0, 1.0),
    )


def test_stages_of_a_gateway_that_kept_running_are_omitted(tmp_path: Path) -> None:
    line = f"{GATEWAY_READY} model=m {REPORTED.format('1970-01-01T23:00:00', 1.5, 4)}"
    start = summarize_start(fake_plan(tmp_path), TIMES, (), log=(), gateway_log=[line])
    assert start.stages == (Stage("first token", 0.0, 5.0),)


@pytest.mark.parametrize(
    ("log", "stages"),
    [
        pytest.param(
            ISO_LOG,
            (
                Stage("launch Triton", 0.0, 1.5),
                Stage("load m", 1.5, 2.5),
                Stage("first token", 4.0, 1.0),
            ),
            id="ISO times",
        ),
        pytest.param("", (Stage("first token", 0.0, 5.0),), id="no loads"),
    ],
)
def test_stages_of_other_logs(tmp_path: Path, log: str, stages: tuple[Stage, ...]) -> None:
    start = summarize_start(fake_plan(tmp_path), TIMES, (), log=log.splitlines())
    assert start.stages == stages


def test_record_keeps_the_last_start_and_the_one_before(tmp_path: Path) -> None:
    first = Startup(("m",), 1.0, 2.5, (Stage("load m", 0.5, 2.0),), ("it died",))
    second, third = (dataclasses.replace(first, started_at=at) for at in (2.0, 3.0))
    for each in (first, second, third):
        record_start(tmp_path, each)
    assert read_starts(tmp_path) == [third, second]


def test_record_of_an_earlier_version_has_no_problems(tmp_path: Path) -> None:
    start = '{"models": ["m"], "started_at": 1, "total_s": 2, "stages": [], "why": []}'
    (tmp_path / STARTUP_FILE).write_text(f"[{start}]")
    assert read_starts(tmp_path) == [Startup(("m",), 1, 2, ())]


@pytest.mark.parametrize("text", [None, "[", "{}", '[{"models": []}]'])
def test_record_that_is_missing_or_damaged_is_empty(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / STARTUP_FILE).write_text(text)
    assert read_starts(tmp_path) == []
