"""Test the simulated engine with a clock that the test controls."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from trtllm_serve_cli.runtime.engine import (
    EngineLimits,
    GenerationRequest,
    InvalidRequest,
    PromptFacts,
    SequenceUpdate,
)
from trtllm_serve_cli.runtime.engines.capabilities import FEATURES
from trtllm_serve_cli.runtime.engines.kinds import explain_rejection, find_kind
from trtllm_serve_cli.runtime.engines.sim.engine import RealClock, SimEngine, load_simulation
from trtllm_serve_cli.runtime.worker.worker_main import load_engine

PROMPT = tuple(range(10, 20))


class StoppedClock:
    """A clock that advances only when the engine waits or the test sets it."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now_s(self) -> float:
        return self.at_s

    def wait_until(self, at_s: float) -> None:
        self.at_s = max(self.at_s, at_s)


def config(folder: Path, **overrides: Any) -> dict[str, Any]:
    timing = {"step_s": 1.0, "prompt_token_s": 0.1}
    (folder / "simulation.json").write_text(json.dumps({"timing": timing}))
    return {"engine_dir": str(folder), "max_seq_len": 100, "vocab_size": 1000, **overrides}


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
def engine(tmp_path: Path, clock: StoppedClock) -> SimEngine:
    return SimEngine(config(tmp_path), clock)


def request(number: int = 1, **fields: Any) -> GenerationRequest:
    return GenerationRequest(**{"id": number, "input_ids": PROMPT, "max_new_tokens": 3, **fields})


def run_out(engine: SimEngine) -> list[SequenceUpdate]:
    updates = []
    while engine.has_work():
        updates += engine.step()
    return updates


def tokens(updates: list[SequenceUpdate]) -> list[int]:
    return [token for each in updates for token in each.token_ids]


def test_tokens_arrive_at_the_times_of_the_timing(engine: SimEngine, clock: StoppedClock) -> None:
    engine.submit(request())
    times = []
    while engine.has_work():
        engine.step()
        times.append(clock.at_s)
    assert times == pytest.approx([102.0, 103.0, 104.0])


def test_time_between_steps_does_not_add_up(engine: SimEngine, clock: StoppedClock) -> None:
    engine.submit(request())
    times = []
    while engine.has_work():
        engine.step()
        times.append(clock.at_s)
        clock.at_s += 0.3
    assert times == pytest.approx([102.0, 103.0, 104.0])


def test_a_late_step_does_not_shorten_later_steps(engine: SimEngine, clock: StoppedClock) -> None:
    engine.submit(request())
    engine.step()
    clock.at_s += 5.5
    times = []
    while engine.has_work():
        engine.step()
        times.append(clock.at_s)
    assert times == pytest.approx([107.5, 108.5])


def test_an_idle_engine_starts_when_a_request_arrives(
    engine: SimEngine, clock: StoppedClock
) -> None:
    engine.submit(request(max_new_tokens=9))
    engine.step()
    engine.cancel(1)
    clock.at_s += 0.5
    engine.submit(request(2))
    engine.step()
    assert clock.at_s == pytest.approx(102.0 + 0.5 + 2.0)


def test_a_response_has_the_requested_length_and_tokens_of_the_prompt(engine: SimEngine) -> None:
    engine.submit(request())
    updates = run_out(engine)
    assert [each.finish_reason for each in updates] == [None, None, "length"]
    assert set(tokens(updates)) <= set(PROMPT)


def test_the_same_seed_and_prompt_give_the_same_response(engine: SimEngine) -> None:
    responses = []
    for number, seed in enumerate((7, 7, 8)):
        engine.submit(request(number, seed=seed, max_new_tokens=20))
        responses.append(tokens(run_out(engine)))
    assert responses[0] == responses[1] != responses[2]


def test_the_end_token_is_never_drawn(engine: SimEngine) -> None:
    engine.submit(request(input_ids=(5, 6), end_id=5, max_new_tokens=30))
    assert set(tokens(run_out(engine))) == {6}


@pytest.mark.parametrize("prompt", [(0,), (0, 0)])
def test_a_prompt_of_end_tokens_gets_another_token(
    engine: SimEngine, prompt: tuple[int, ...]
) -> None:
    engine.submit(request(input_ids=prompt, end_id=0))
    assert set(tokens(run_out(engine))) == {1}


def test_a_stop_word_ends_the_response_and_is_part_of_it(engine: SimEngine) -> None:
    engine.submit(request(input_ids=(5,), stop_words=((5, 5),)))
    updates = run_out(engine)
    assert (tokens(updates), updates[-1].finish_reason) == ([5, 5], "stop")
    assert engine.stats().kv_blocks_used == 0


def test_bad_words_are_not_generated(engine: SimEngine) -> None:
    bad_words = ((5,), (6, 7))
    engine.submit(request(input_ids=(5, 6, 7), bad_words=bad_words, max_new_tokens=60))
    generated = tokens(run_out(engine))
    assert 5 not in generated
    assert (6, 7) not in list(pairwise(generated))


def test_several_sequences_differ(engine: SimEngine) -> None:
    engine.submit(request(num_return_sequences=3, max_new_tokens=20))
    updates = run_out(engine)
    responses = [tuple(tokens([u for u in updates if u.sequence_index == i])) for i in range(3)]
    assert [len(each) for each in responses] == [20, 20, 20]
    assert len(set(responses)) == 3


def test_performance_metrics_are_those_of_the_simulation(engine: SimEngine) -> None:
    engine.submit(request(return_perf_metrics=True))
    perf = run_out(engine)[-1].perf
    assert perf is not None
    times = (perf.first_scheduled_time_ns, perf.first_token_time_ns, perf.last_token_time_ns)
    assert times == (100_000_000_000, 102_000_000_000, 104_000_000_000)
    assert perf.kv_cache_alloc_total_blocks == 1


def test_statistics_count_waiting_and_running_requests(tmp_path: Path, clock: StoppedClock) -> None:
    engine = SimEngine(config(tmp_path, max_batch_size=1), clock)
    engine.submit(request(1))
    engine.submit(request(2))
    engine.step()
    stats = engine.stats()
    assert (stats.active_requests, stats.scheduled_requests, stats.waiting_requests) == (2, 1, 1)
    assert (stats.kv_blocks_used, stats.iteration, stats.context_tokens) == (1, 1, 10)
    run_out(engine)
    stats = engine.stats()
    assert (stats.active_requests, stats.kv_blocks_used) == (0, 0)
    assert (stats.kv_blocks_reused, stats.kv_blocks_missed) == (0, 2)


def test_rejects_unsupported_features(engine: SimEngine) -> None:
    unsupported: dict[str, dict[str, Any]] = {
        "beam_width": {"beam_width": 2},
        "guided_decoding_guide_type": {"guide_type": "json"},
        "lora_task_id": {"lora_task_id": 7, "lora_file": "a"},
        "lora_name": {"lora_name": "a", "lora_file": "a"},
    }
    for tensor, fields in unsupported.items():
        with pytest.raises(InvalidRequest) as raised:
            engine.submit(request(**fields))
        assert str(raised.value) == explain_rejection(tensor, "sim")
        feature = next(each for each in FEATURES if tensor in each.tensors)
        assert feature in find_kind("sim").capabilities.unsupported


def test_rejects_a_request_that_can_never_run(engine: SimEngine) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens_in_paged_kv_cache"):
        engine.submit(request(max_new_tokens=1 << 21))


def test_parameters_override_the_file(tmp_path: Path) -> None:
    worker_config = config(tmp_path, max_num_tokens=64, batch_scheduler_policy="max_utilization")
    limits = load_simulation(worker_config).limits
    assert (limits.max_num_tokens, limits.batch_scheduler_policy) == (64, "max_utilization")
    assert limits.max_batch_size == 256


def test_the_worker_loads_the_engine(tmp_path: Path) -> None:
    limits = load_engine("sim", config(tmp_path)).limits
    assert limits == EngineLimits(max_seq_len=100, max_beam_width=64, vocab_size=1000)


def test_the_real_clock_waits_for_future_times_only() -> None:
    clock = RealClock()
    until_s = clock.now_s() + 0.001
    clock.wait_until(until_s)
    assert clock.now_s() >= until_s
    clock.wait_until(until_s - 1)


def test_log_probabilities_are_the_same_in_the_prompt_and_in_the_response(
    engine: SimEngine,
) -> None:
    options: dict[str, Any] = {"return_log_probs": True, "num_top_log_probs": 3}
    engine.submit(request(**options))
    updates = run_out(engine)
    whole = (*PROMPT, *tokens(updates))
    engine.submit(request(2, input_ids=whole, return_prompt_log_probs=True, **options))
    prompt = run_out(engine)[0].prompt
    assert prompt is not None
    assert (len(prompt.log_probs), len(prompt.top_log_probs)) == (12, 12)
    assert prompt.log_probs[-3:] == tuple(each.log_probs[0] for each in updates)
    assert prompt.top_log_probs[-3:] == tuple(each.top_log_probs[0] for each in updates)
    assert updates[-1].cum_log_prob == pytest.approx(sum(prompt.log_probs[-3:]))


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        ({10: -100.0, 11: -100.0, 12: -99.0}, set(PROMPT[2:])),
        ({700: 100.0, 800: 100.0}, {700, 800}),
        ({700: 99.0}, set(PROMPT)),
    ],
)
def test_a_decisive_bias_bans_or_forces_tokens(
    engine: SimEngine, bias: dict[int, float], expected: set[int]
) -> None:
    engine.submit(request(max_new_tokens=80, logit_bias=tuple(bias.items())))
    assert set(tokens(run_out(engine))) == expected


def test_first_update_counts_cached_tokens(tmp_path: Path, clock: StoppedClock) -> None:
    engine = SimEngine(config(tmp_path, tokens_per_block=4), clock)
    prompts = []
    for number in (1, 2):
        engine.submit(request(number, num_return_sequences=2))
        prompts += [each.prompt for each in run_out(engine) if each.prompt is not None]
    assert prompts == [PromptFacts(0), PromptFacts(8)]
