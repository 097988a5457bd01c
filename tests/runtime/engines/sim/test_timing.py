"""Test the fields of `simulation.json` and the duration of a step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtllm_serve_cli.runtime.engines.sim.timing import (
    SchedulerLimits,
    Simulation,
    StepTiming,
    StepWork,
    parse_simulation,
)

STEP = {"timing": {"step_s": 1}}
NO_TIMING = (
    "timing is missing or is not a JSON object; set timing to an object that contains at least the "
    "step_s field"
)


def test_a_step_is_the_sum_of_its_parts() -> None:
    timing = StepTiming(1.0, 0.1, 0.01, 0.001, 0.0001)
    work = StepWork(prompt_tokens=2, prompt_pairs=3, sequences=4, kv_tokens=5)
    assert timing.duration_s(work) == pytest.approx(1.2345)


def test_parse_simulation_reads_to_json() -> None:
    simulation = Simulation(
        StepTiming(0.02, 1e-5, jitter=0.1),
        SchedulerLimits(max_batch_size=7, batch_scheduler_policy="max_utilization"),
        "a measured run",
    )
    assert parse_simulation(json.dumps(simulation.to_json())) == simulation


def test_a_timing_alone_is_enough() -> None:
    assert parse_simulation('{"timing": {"step_s": 0.02}}') == Simulation(StepTiming(0.02))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], NO_TIMING),
        ({"timing": 1}, NO_TIMING),
        ({"timing": {}}, "timing.step_s is missing or 0; set it to a number greater than 0"),
        (
            {"timing": {"step_s": 0}},
            "timing.step_s is missing or 0; set it to a number greater than 0",
        ),
        ({"timing": {"step_s": -1}}, "timing.step_s must be finite and not negative, but is -1"),
        ({"timing": {"step_s": "1"}}, "timing.step_s must be a number, but is '1'"),
        ({"timing": {"step_s": True}}, "timing.step_s must be a number, but is True"),
        (
            {"timing": {"step_s": float("nan")}},
            "timing.step_s must be finite and not negative, but is nan",
        ),
        ({**STEP, "schema": 2}, "schema is 2, but only schema 1 is supported"),
        (
            {**STEP, "more": 2},
            "more is not a known field; the known fields are schema, timing, limits, origin",
        ),
    ],
    ids=str,
)
def test_rejects_an_invalid_simulation(document: Any, why: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_simulation(json.dumps(document))
    assert str(raised.value) == why


def test_rejects_an_unknown_field_of_the_timing() -> None:
    with pytest.raises(
        ValueError, match=r"timing\.steps is not a known field; the known fields are step_s, "
    ):
        parse_simulation('{"timing": {"steps": 1}}')


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"max_batch_size": 0}, "max_batch_size must be at least 1, but is 0"),
        ({"max_batch_size": 1.5}, "max_batch_size must be of type int, but is 1.5"),
        ({"enable_chunked_context": 1}, "enable_chunked_context must be of type bool, but is 1"),
        (
            {"batch_scheduler_policy": "x"},
            "batch_scheduler_policy must be guaranteed_no_evict or max_utilization, but is 'x'",
        ),
        (
            {"max_tokens_in_paged_kv_cache": 31},
            "max_tokens_in_paged_kv_cache must be at least limits.tokens_per_block (32), but is 31",
        ),
        (
            {"max_batch": 31},
            "max_batch is not a known field; the known fields are "
            + ", ".join(SchedulerLimits.__slots__),
        ),
    ],
    ids=str,
)
def test_rejects_invalid_limits(limits: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_simulation(json.dumps({**STEP, "limits": limits}))
    assert str(raised.value) == f"limits.{why}"


@pytest.mark.parametrize("limits", [[], None, 5])
def test_rejects_limits_that_are_not_an_object(limits: object) -> None:
    with pytest.raises(ValueError, match=r"^limits is not a JSON object"):
        parse_simulation(json.dumps({**STEP, "limits": limits}))
