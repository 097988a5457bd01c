"""The checks of the soak test find the problems that they look for."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from soak_accounts import ClientCounts, ServerCounts, compare
from soak_cases import (
    Answer,
    Case,
    Interface,
    Kind,
    Profile,
    draw_case,
    expected_text,
    find_problem,
)
from soak_growth import Sample, measure_growth
from soak_logs import find_errors
from soak_run import plan_faults

EXACT = Profile("sim", is_exact=True, max_tokens=20)
REAL = Profile("demo", is_exact=False, max_tokens=20, has_guides=True)
CASE = Case("whole", "grpc", ("one", "two", "three"), seed=7, num_tokens=6, is_stream=True)
TEXT = expected_text(CASE, 6)


def test_correct_responses_have_no_problem() -> None:
    whole = Answer("complete", TEXT, 6, 6, "length")
    cancelled = Answer("cancelled", expected_text(CASE, 2), 2)
    rejected = Answer("rejected", error="too many tokens")
    assert find_problem(CASE, whole, EXACT) == ""
    assert find_problem(replace(CASE, kind="cancel"), cancelled, EXACT) == ""
    assert find_problem(replace(CASE, kind="wrong"), rejected, EXACT) == ""


@pytest.mark.parametrize(
    ("case", "answer", "problem"),
    [
        (CASE, Answer("complete", TEXT.replace("one", "two"), 6, 6), "the text is"),
        (CASE, Answer("complete", expected_text(CASE, 5), 5, 6), "the text ends early"),
        (CASE, Answer("complete", expected_text(CASE, 5), 5, 5), "has 5 tokens instead of 6"),
        (CASE, Answer("complete", TEXT, 6, 6, "stop"), "the finish reason is stop"),
        (CASE, Answer("rejected", error="no"), "a valid request was rejected: no"),
        (CASE, Answer("failed"), "without an error message"),
        (replace(CASE, kind="wrong"), Answer("complete", TEXT, 6, 6), "was not rejected"),
    ],
)
def test_wrong_responses_are_found(case: Case, answer: Answer, problem: str) -> None:
    assert problem in find_problem(case, answer, EXACT)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"color": "red", "known": true}', ""),
        ('{"color": "red", "known": 1}', "does not match its schema"),
        ('{"color": "red"', "is not valid JSON"),
    ],
)
def test_guided_responses_are_checked(text: str, problem: str) -> None:
    case = replace(CASE, kind="guide", num_tokens=48)
    found = find_problem(case, Answer("complete", text, 9, 9, "stop"), REAL)
    assert problem in found and bool(problem) == bool(found)


def test_draws_include_each_kind_on_each_interface() -> None:
    rng = Random(1)
    drawn = {(case.kind, case.interface) for case in (draw_case(rng, REAL) for _ in range(300))}
    kinds, interfaces = set(get_args(Kind)) - {"adapter"}, get_args(Interface)
    assert drawn == set(product(kinds, interfaces))


def test_draws_repeat_with_the_same_seed() -> None:
    drawn = [[draw_case(Random(seed), REAL) for _ in range(3)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


CLIENT = ClientCounts(complete=5, cancelled=2, rejected=1, tokens=50, min_open_tokens=3)
CLIENT.max_open_tokens = 20
SERVER = ServerCounts(complete=6, cancelled=1, rejected=1, tokens=60)


def test_equal_accounts_have_no_differences() -> None:
    assert compare(CLIENT, SERVER) == []


@pytest.mark.parametrize(
    ("server", "difference"),
    [
        (replace(SERVER, complete=4, cancelled=3), "4 complete requests, the clients 5 to 7"),
        (replace(SERVER, cancelled=0), "counted 7 requests, the clients 8 to 8"),
        (replace(SERVER, failed=1, cancelled=0), "1 failed requests, the clients 0 to 0"),
        (replace(SERVER, rejected=0, cancelled=2), "0 rejected requests, the clients 1 to 1"),
        (replace(SERVER, tokens=52), "52 tokens, the clients 53 to 70"),
        (replace(SERVER, tokens=71), "71 tokens, the clients 53 to 70"),
    ],
)
def test_differences_of_accounts_are_found(server: ServerCounts, difference: str) -> None:
    assert any(difference in each for each in compare(CLIENT, server))


def series(memory_mb: float, grown_mb: float, pid: int = 1) -> list[Sample]:
    """Return samples of a process whose memory grows while it is warm, after 30 s of warm-up."""
    warm = [
        Sample(30.0 + n, "gateway", pid, memory_mb + grown_mb * n / 29, 9, 4) for n in range(30)
    ]
    return [Sample(float(n), "gateway", pid, n, 9, 4) for n in range(30)] + warm


def test_growth_is_found_after_the_warm_up() -> None:
    (found,) = (each for each in measure_growth(series(100, 50), 30.0) if each.problem)
    assert "the memory of gateway (process 1) grew from 107.8 to 142.2 MB" in found.problem
    assert not any(each.problem for each in measure_growth(series(100, 10), 30.0))


def test_an_engine_worker_may_grow_by_its_allowance() -> None:
    worker = [replace(each, part="engine worker") for each in series(100, 50)]
    assert any(each.problem for each in measure_growth(worker, 30.0))
    assert not any(each.problem for each in measure_growth(worker, 30.0, 80.0))


def test_processes_that_were_restarted_are_compared_separately() -> None:
    growth = measure_growth([*series(100, 0, pid=1), *series(200, 0, pid=2)], 30.0)
    assert {each.pid for each in growth} == {1, 2}
    assert not any(each.problem for each in growth)


def test_errors_in_logs_are_grouped_without_the_expected_ones(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(
        "E tensorrt_llm] the engine worker died (signal 9); restarting it\n"
        'E1123 16:50:59.1 18 a.cc:2] "stream 1 failed"\n'
        'I1123 16:50:59.2 18 a.cc:2] "ready"\n'
        'E1124 17:00:00.0 19 a.cc:2] "stream 2 failed"\n'
    )
    (found,) = find_errors(tmp_path)
    assert found.startswith("2 times in server.log: E1123") and "stream 1 failed" in found


def test_error_of_a_signal_has_the_lines_before_it(tmp_path: Path) -> None:
    lines = ["one", "", "two", "terminate called after", "  what(): lock", "Signal (6) received."]
    (tmp_path / "server.log").write_text("\n".join(lines))
    (found,) = find_errors(tmp_path)
    assert found.endswith("two | terminate called after |   what(): lock | Signal (6) received.")


def test_no_process_is_killed_in_the_last_third_of_the_rounds() -> None:
    faults = plan_faults(12)
    assert len(faults) == 12 and not any(faults[8:])
    assert faults[:4] == ["", "engine worker", "gateway", "stub of tensorrt_llm"]
