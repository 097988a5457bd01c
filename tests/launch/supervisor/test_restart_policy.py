"""The decision whether and when to restart a server that failed."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.launch.supervisor.restart_policy import (
    FailureCounts,
    RestartPolicy,
    choose_pause_s,
    count_failure,
)

POLICY = RestartPolicy()
SHORT, LONG = 5.0, 121.0


def pauses(runs: Sequence[float | None]) -> list[float | None]:
    """Return the pause after each run. A run is a number of seconds, or None for a failed start."""
    counts, found = FailureCounts(), []
    for ready_for_s in runs:
        counts = count_failure(counts, POLICY, ready_for_s)
        found.append(choose_pause_s(counts, POLICY))
    return found


def test_pauses_grow_and_start_again_after_a_long_run() -> None:
    assert pauses([SHORT] * 7) == [1, 2, 4, 8, 16, 30, 30]
    assert pauses([SHORT, SHORT, LONG, SHORT]) == [1, 2, 1, 2]


def test_failed_starts_are_given_up_unless_one_becomes_ready() -> None:
    assert pauses([SHORT, None, None, None, None, None]) == [1, 2, 4, 8, 16, None]
    assert pauses([SHORT, None, None, None, None, SHORT, None]) == [1, 2, 4, 8, 16, 30, 30]


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=200))
def test_server_that_became_ready_is_restarted(runs: list[float | None]) -> None:
    for run, pause_s in zip(runs, pauses(runs), strict=True):
        if run is not None:
            assert pause_s is not None
        if pause_s is not None:
            assert POLICY.first_pause_s <= pause_s <= POLICY.max_pause_s
