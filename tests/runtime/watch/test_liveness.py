"""The decision whether a part of a server hangs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.pulse import (
    PULSES_VARIABLE,
    Pulse,
    PulseFile,
    PulseState,
    PulseWriter,
)
from trtllm_serve_cli.runtime.watch.liveness import (
    HangLimits,
    Sign,
    Silence,
    count_processes,
    read_pulse_signs,
    sign_of_pulse,
    update_silences,
)

LIMITS = HangLimits(hang_timeout_s=120.0, load_timeout_s=300.0)
IDLE = Pulse("worker", "m", 7, PulseState.IDLE, num_beats=3)
BUSY = Pulse("worker", "m", 7, PulseState.BUSY, num_beats=3, num_updates=5, num_in_flight=2)
FAILED = Pulse("worker", "m", 7, PulseState.FAILED)


def follow(pulses: Sequence[Pulse], elapsed_s: float, limits: HangLimits = LIMITS) -> Silence:
    """Observe one pulse after another, and return the silence after the last one."""
    silences: dict[str, Silence] = {}
    for pulse in pulses:
        sign = sign_of_pulse(pulse, limits)
        silences = update_silences(silences, [sign] if sign else [], elapsed_s)
    (silence,) = silences.values()
    return silence


@pytest.mark.parametrize(
    ("pulse", "silent_s", "hang_s", "what"),
    [
        (IDLE, 10, 30, "the engine worker of m (process 7) has not responded for 10 s"),
        (
            BUSY,
            30,
            120,
            "the engine worker of m (process 7) has not completed a step for 30 s, with 2 requests "
            "in flight",
        ),
        (FAILED, 0, 300, "the engine worker of m died, and the engine has not been reloaded"),
        (
            Pulse("model", "ensemble", 8, PulseState.IDLE),
            10,
            30,
            "the process of model ensemble (process 8) has not responded for 10 s",
        ),
        (
            Pulse("gateway", "api", 9, PulseState.IDLE),
            10,
            30,
            "the OpenAI-compatible gateway (process 9) has not responded for 10 s",
        ),
        (
            Pulse("model", "ensemble", 8, PulseState.ENDED),
            0,
            0,
            "the process of model ensemble (process 8) died",
        ),
    ],
    ids=["idle worker", "busy worker", "dead worker", "model", "gateway", "dead model"],
)
def test_limits_and_message_of_a_pulse(
    pulse: Pulse, silent_s: float, hang_s: float, what: str
) -> None:
    sign = sign_of_pulse(pulse, LIMITS)
    assert sign is not None
    assert (sign.silent_after_s, sign.hangs_after_s, sign.what) == (silent_s, hang_s, what)


def test_parts_of_a_real_process_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PULSES_VARIABLE, str(tmp_path))
    file = PulseFile("worker", "m")
    PulseWriter(file.path).work(1)
    (sign,) = read_pulse_signs(tmp_path, LIMITS)
    assert (sign.part, sign.hangs_after_s) == (f"worker m {os.getpid()}", LIMITS.busy[1])
    file.close()


def test_stopped_engine_has_the_limits_of_an_idle_one() -> None:
    sign = sign_of_pulse(BUSY, LIMITS, has_stopped=True)
    assert sign is not None and (sign.silent_after_s, sign.hangs_after_s) == LIMITS.idle


def test_nothing_is_restarted_without_a_time_limit() -> None:
    for pulse in (BUSY, FAILED, Pulse("model", "ensemble", 8, PulseState.ENDED)):
        sign = sign_of_pulse(pulse, HangLimits(hang_timeout_s=0.0))
        assert sign is not None and sign.hangs_after_s == math.inf


def test_process_that_loads_for_the_first_time_is_not_judged() -> None:
    assert sign_of_pulse(Pulse("worker", "m", 0, PulseState.LOADING), LIMITS) is None


@pytest.mark.parametrize(
    ("timeout_s", "idle", "busy"),
    [
        (1.0, (2.5, 5.0), (0.5, 1.0)),
        (12.0, (6.0, 12.0), (6.0, 12.0)),
        (600.0, (10.0, 30.0), (30.0, 600.0)),
        (0.0, (10.0, math.inf), (30.0, math.inf)),
    ],
)
def test_limits_follow_from_the_timeout(
    timeout_s: float, idle: tuple[float, float], busy: tuple[float, float]
) -> None:
    limits = HangLimits(timeout_s)
    assert (limits.idle, limits.busy) == (idle, busy)


@given(
    state=st.sampled_from([PulseState.IDLE, PulseState.BUSY, PulseState.FAILED]),
    num_observations=st.integers(1, 500),
    elapsed_s=st.floats(0.0, 1e6),
)
def test_nothing_hangs_without_a_timeout(
    state: PulseState, num_observations: int, elapsed_s: float
) -> None:
    pulse = Pulse("worker", "m", 7, state)
    assert not follow([pulse] * num_observations, elapsed_s, HangLimits(0.0)).is_hang


@given(
    counts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1),
    state=st.sampled_from([PulseState.IDLE, PulseState.BUSY]),
    elapsed_s=st.floats(0.0, 60.0),
)
def test_silence_is_the_time_since_the_last_progress(
    counts: list[tuple[int, int, int]], state: PulseState, elapsed_s: float
) -> None:
    pulses = [Pulse("worker", "m", 7, state, *each) for each in counts]
    marks = [each[0] if state is PulseState.IDLE else each for each in counts]
    num_same = next(
        (index for index, mark in enumerate(reversed(marks)) if mark != marks[-1]), len(marks)
    )
    expected_s = (num_same - 1) * min(elapsed_s, 5.0)
    assert follow(pulses, elapsed_s).lasted_s == pytest.approx(expected_s)


@given(timeout_s=st.floats(1.0, 1000.0), elapsed_s=st.floats(0.1, 5.0))
def test_engine_without_progress_hangs_after_the_timeout_and_is_silent_before(
    timeout_s: float, elapsed_s: float
) -> None:
    limits = HangLimits(timeout_s)
    num_steps = math.ceil(timeout_s / elapsed_s) + 2
    silence = follow([BUSY] * num_steps, elapsed_s, limits)
    assert silence.is_hang and silence.is_silent
    early = follow([BUSY] * max(1, math.floor(timeout_s / elapsed_s)), elapsed_s, limits)
    assert not early.is_hang
    assert silence.sign.silent_after_s < silence.sign.hangs_after_s


@given(requests=st.lists(st.integers(0, 10_000), min_size=2))
def test_new_requests_are_not_progress(requests: list[int]) -> None:
    pulses = [Pulse("worker", "m", 7, PulseState.BUSY, num_in_flight=each) for each in requests]
    assert follow(pulses, 1.0).lasted_s == len(requests) - 1


def test_time_in_which_the_supervisor_did_not_run_counts_as_five_seconds() -> None:
    assert follow([IDLE, IDLE], 3600.0).lasted_s == 5.0


def test_parts_are_judged_separately_and_forgotten_when_they_end() -> None:
    def sign(part: str, mark: int) -> Sign:
        return Sign(part, mark, part, 10.0, 30.0, "model", 1)

    first = update_silences({}, [sign("a", 1), sign("b", 1), sign("c", 1)], 1.0)
    second = update_silences(first, [sign("a", 1), sign("b", 2)], 1.0)
    assert {part: each.lasted_s for part, each in second.items()} == {"a": 1.0, "b": 0.0}


def test_process_with_several_silent_parts_counts_once() -> None:
    triton = [Sign(part, 0, "", 1.0, 2.0, "triton", 7) for part in ("http", "grpc")]
    worker = Sign("worker m 8", 0, "", 1.0, 2.0, "worker", 8)
    assert count_processes([Silence(each, 3.0) for each in (*triton, worker)]) == 2
