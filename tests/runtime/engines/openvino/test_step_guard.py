"""The guard reports steps that only guides can have slowed down."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.runtime.engines.openvino.step_guard import StepClock, StepGuard, StepTimes

# A step with one token per request on two cores, in which the calling thread did half of the work.
DECODE = StepTimes(elapsed_s=0.02, process_s=0.03, thread_s=0.015)


def guard() -> StepGuard:
    guard = StepGuard()
    for _ in range(100):
        guard.learn(DECODE)
    return guard


def report(guard: StepGuard, *steps: StepTimes, compile_s: float = 0.0) -> list[bool]:
    return [guard.is_slow(step, compile_s) for step in steps]


def test_reports_the_second_of_two_slow_steps() -> None:
    slow = StepTimes(2.0, 2.1, 0.015)
    assert report(guard(), slow, slow, DECODE, slow) == [False, True, False, False]


@pytest.mark.parametrize(
    ("step", "compile_s"),
    [
        (StepTimes(5.0, 0.03, 0.015), 0.0),
        (StepTimes(10.0, 18.0, 9.0), 0.0),
        (StepTimes(20.0, 18.0, 9.0), 0.0),
        (StepTimes(2.5, 2.6, 0.015), 1.8),
    ],
    ids=["the machine is busy", "long prompts", "long prompts on a busy machine", "new guides"],
)
def test_steps_with_another_cause_are_not_reported(step: StepTimes, compile_s: float) -> None:
    assert report(guard(), step, step, compile_s=compile_s) == [False, False]


def test_inference_is_tolerated_before_steps_without_guides_are_known() -> None:
    prompts = StepTimes(3.0, 5.9, 2.9)
    assert report(StepGuard(), prompts, prompts) == [False, False]


def test_steps_are_learned_again_if_the_machine_changes() -> None:
    changed = guard()
    for _ in range(100):
        changed.learn(StepTimes(0.2, 0.3, 0.015))
    assert report(changed, *[StepTimes(1.7, 1.8, 0.015)] * 2) == [False, False]


def test_clock_measures_the_threads_own_cpu_time() -> None:
    clock = StepClock()
    while not (times := clock.stop()).thread_s:
        pass
    assert 0 < times.thread_s <= times.process_s and times.duration_s <= times.elapsed_s
