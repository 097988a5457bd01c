"""Test the order of requests and the work of each step in the simulated scheduler."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engines.sim.scheduler import (
    Scheduler,
    SimRequest,
    Step,
    count_blocks,
    find_problem,
)
from trtllm_serve_cli.runtime.engines.sim.timing import (
    POLICIES,
    SchedulerLimits,
    Simulation,
    StepTiming,
    StepWork,
)

LIMITS = SchedulerLimits(
    max_batch_size=4,
    max_num_tokens=100,
    max_tokens_in_paged_kv_cache=1000,
    tokens_per_block=10,
    enable_kv_cache_reuse=False,
)


def scheduler(timing: StepTiming | None = None, **limits: Any) -> Scheduler:
    changed = dataclasses.replace(LIMITS, **limits)
    return Scheduler(Simulation(timing or StepTiming(1.0), changed))


def request(number: int, num_input: int, max_new_tokens: int, num_sequences: int = 1) -> SimRequest:
    ids = range(number * 1000, number * 1000 + num_input)
    return SimRequest(number, ids, max_new_tokens, num_sequences)


def submit(target: Scheduler, *lengths: tuple[int, ...]) -> list[SimRequest]:
    requests = [request(number, *each) for number, each in enumerate(lengths)]
    for each in requests:
        target.submit(each)
    return requests


def request_ids(step: Step) -> list[int]:
    return [each.id for each in step.tokens]


def run_out(target: Scheduler) -> list[Step]:
    steps = []
    while target.has_work:
        steps.append(target.step())
    return steps


def test_the_prompt_step_and_each_later_step_give_one_token() -> None:
    steps = scheduler()
    submit(steps, (20, 3))
    assert [step.work for step in run_out(steps)] == [
        StepWork(prompt_tokens=20, prompt_pairs=190),
        StepWork(sequences=1, kv_tokens=21),
        StepWork(sequences=1, kv_tokens=22),
    ]


def test_a_step_takes_as_long_as_its_work() -> None:
    steps = scheduler(StepTiming(1.0, prompt_token_s=0.1, sequence_s=0.01, kv_token_s=0.001))
    submit(steps, (20, 2))
    assert [step.duration_s for step in run_out(steps)] == pytest.approx([3.0, 1.031])


def test_later_requests_join_between_steps() -> None:
    steps = scheduler()
    submit(steps, (10, 3))
    steps.step()
    steps.submit(request(7, 10, 2))
    assert [request_ids(step) for step in run_out(steps)] == [[7, 0], [0, 7]]


def test_running_requests_are_limited_by_the_batch_size() -> None:
    steps = scheduler(max_batch_size=2)
    submit(steps, (10, 2), (10, 2), (10, 1))
    assert [request_ids(step) for step in run_out(steps)] == [[0, 1], [0, 1], [2]]


def test_prompts_beyond_the_token_budget_wait_for_the_next_step() -> None:
    steps = scheduler(max_num_tokens=100)
    submit(steps, (60, 2), (60, 1))
    assert [step.work.prompt_tokens for step in run_out(steps)] == [60, 60]


def test_chunked_context_fills_a_step_with_part_of_a_prompt() -> None:
    steps = scheduler(max_num_tokens=100, enable_chunked_context=True)
    submit(steps, (60, 2), (60, 1))
    done = run_out(steps)
    assert [step.work.prompt_tokens for step in done] == [100, 20]
    assert [request_ids(step) for step in done] == [[0], [1, 0]]
    # The 20 tokens of the second chunk attend to 40 earlier tokens and to each other.
    assert done[1].work.prompt_pairs == 20 * 40 + 190


def test_guaranteed_no_evict_starts_requests_that_can_finish() -> None:
    steps = scheduler(max_tokens_in_paged_kv_cache=100)
    first, _ = submit(steps, (10, 50), (10, 50))
    assert request_ids(steps.step()) == [0]
    assert steps.num_waiting == 1
    while not first.is_done:
        steps.step()
    assert request_ids(steps.step()) == [1]


def test_max_utilization_starts_what_fits_and_pauses_the_latest_request() -> None:
    steps = scheduler(max_tokens_in_paged_kv_cache=100, batch_scheduler_policy="max_utilization")
    first, second = submit(steps, (10, 50), (10, 50))
    assert request_ids(steps.step()) == [0, 1]
    while steps.num_waiting == 0:
        step = steps.step()
    # Each request had 50 tokens in five blocks when the first request needed another block.
    assert (first.num_generated, second.num_generated) == (41, 40)
    assert request_ids(step) == [0]
    while not first.is_done:
        steps.step()
    again = steps.step()
    assert again.work.prompt_tokens == 50
    assert (request_ids(again), second.num_generated) == ([1], 41)


def test_a_paused_request_larger_than_a_step_runs_alone() -> None:
    steps = scheduler(
        max_num_tokens=20,
        max_tokens_in_paged_kv_cache=60,
        batch_scheduler_policy="max_utilization",
    )
    requests = submit(steps, (20, 30), (20, 30))
    run_out(steps)
    assert [each.num_generated for each in requests] == [30, 30]


def test_known_blocks_are_not_computed_again() -> None:
    steps = scheduler(enable_kv_cache_reuse=True)
    steps.submit(SimRequest(0, range(35), 1))
    steps.step()
    steps.submit(SimRequest(1, range(35), 1))
    step = steps.step()
    assert step.work.prompt_tokens == 5
    assert step.tokens[0].num_reused_blocks == 3


def test_several_sequences_share_the_prompt() -> None:
    steps = scheduler()
    submit(steps, (20, 2, 3))
    assert [step.work for step in run_out(steps)] == [
        StepWork(prompt_tokens=20, prompt_pairs=190),
        StepWork(sequences=3, kv_tokens=63),
    ]


@pytest.mark.parametrize("num_steps", [0, 1, 3], ids=["waiting", "alone", "with another"])
def test_removing_a_request_frees_its_blocks(num_steps: int) -> None:
    steps = scheduler()
    submit(steps, (10, 9), (10, 5))
    for _ in range(num_steps):
        steps.step()
    steps.remove(0)
    steps.remove(99)
    assert all(request_ids(step) == [1] for step in run_out(steps))
    assert steps.count_used_blocks() == 0


def test_jitter_follows_its_seed_and_keeps_the_mean() -> None:
    def durations(seed: int) -> list[float]:
        simulation = Simulation(StepTiming(1.0, jitter=0.2), LIMITS)
        steps = Scheduler(simulation, seed=seed)
        submit(steps, (10, 900))
        return [step.duration_s for step in run_out(steps)]

    assert durations(1) == durations(1) != durations(2)
    assert sum(durations(1)) / 900 == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("lengths", "limits", "why"),
    [
        ((90, 10), {}, None),
        ((100, 910), {}, "The request may need KV cache for 1010 tokens, but the limit is 1000"),
        (
            (101, 1),
            {},
            "The prompt has 101 tokens, but a step can process at most 100 tokens",
        ),
        ((101, 1), {"enable_chunked_context": True}, None),
        (
            (10, 1, 5),
            {},
            "The request has 5 sequences, but a step can process at most 4 sequences",
        ),
    ],
    ids=str,
)
def test_find_problem_explains_requests_that_can_never_run(
    lengths: tuple[int, ...], limits: dict[str, Any], why: str | None
) -> None:
    problem = find_problem(dataclasses.replace(LIMITS, **limits), *lengths)
    assert problem is None if why is None else problem is not None and problem.startswith(why)


_LENGTHS = st.tuples(st.integers(1, 100), st.integers(1, 60), st.integers(1, 3))


@given(
    st.lists(_LENGTHS, min_size=1, max_size=12),
    st.sampled_from(POLICIES),
    st.booleans(),
    st.integers(20, 60),
)
def test_every_request_gets_its_tokens_within_the_limits(
    lengths: list[tuple[int, int, int]], policy: Any, is_chunked: bool, num_blocks: int
) -> None:
    steps = scheduler(
        batch_scheduler_policy=policy,
        enable_chunked_context=is_chunked,
        max_tokens_in_paged_kv_cache=num_blocks * 10,
    )
    limits = dataclasses.replace(LIMITS, max_tokens_in_paged_kv_cache=num_blocks * 10)
    fitting = [each for each in lengths if find_problem(limits, *each) is None]
    requests = submit(steps, *fitting)
    tokens: Counter[int] = Counter()
    computed = 0
    while steps.has_work:
        step = steps.step()
        assert step.tokens or is_chunked
        assert step.work.sequences <= limits.max_batch_size
        assert steps.count_used_blocks() <= num_blocks
        tokens.update(request_ids(step))
        computed += step.work.prompt_tokens
    assert tokens == {each.id: each.max_new_tokens for each in requests}
    assert steps.count_used_blocks() == 0
    if policy == "guaranteed_no_evict":
        assert computed == sum(len(each.input_ids) for each in requests)


def test_count_blocks() -> None:
    assert [count_blocks(LIMITS, *each) for each in ((10, 0), (10, 1), (25, 5), (25, 6, 3))] == [
        1, 2, 3, 2 + 3 * 2,
    ]  # fmt: skip
