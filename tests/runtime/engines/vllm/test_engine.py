"""Test the inputs and outputs of the vLLM engine with a fake vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.stand_in_engines import (
    EngineLoader,
    engines_on,
    request,
    request_with_adapter,
    run,
    write_checkpoint,
)
from tests.samples.lora_adapters import SITES, make_adapter, write_peft
from trtllm_serve_cli.runtime.engine import (
    EngineLimits,
    EngineStats,
    InvalidRequest,
    PerfMetrics,
    PromptFacts,
    SequenceUpdate,
)

# What the fake reports about each prompt.
CACHED = PromptFacts(4)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLoader]:
    """Return a function that loads an engine with the given vLLM arguments."""
    with engines_on(
        "engines.vllm.engine",
        "VllmEngine",
        "vllm.v1.engine.core_client",
        "VLLM_NO_USAGE_STATS",
        monkeypatch,
    ) as load:
        yield load


def tokens_of(updates: list[SequenceUpdate], sequence: int = 0) -> list[int]:
    return [
        token for each in updates if each.sequence_index == sequence for token in each.token_ids
    ]


def last_request(load: EngineLoader) -> Any:
    """Return the last request that the package received."""
    return load.client.requests[-1]


def test_tokens_arrive_as_they_are_generated(load: EngineLoader) -> None:
    engine = load()
    assert run(engine, request()) == [
        SequenceUpdate(1, 0, (11,), prompt=CACHED),
        SequenceUpdate(1, 0, (12,)),
        SequenceUpdate(1, 0, (13,), "length"),
    ]
    assert last_request(load).prompt_token_ids == [5, 10]


def test_the_end_token_ends_the_sequence_and_is_not_returned(load: EngineLoader) -> None:
    engine = load()
    assert run(engine, request(end_id=12)) == [
        SequenceUpdate(1, 0, (11,), prompt=CACHED),
        SequenceUpdate(1, 0, (), "stop"),
    ]
    assert load.client.aborted == []


def test_a_stop_word_of_one_token_ends_the_sequence_in_vllm(load: EngineLoader) -> None:
    engine = load()
    updates = run(engine, request(stop_words=((11,),)))
    assert updates == [SequenceUpdate(1, 0, (11,), "stop", prompt=CACHED)]
    assert load.client.aborted == []


def test_a_stop_word_of_several_tokens_aborts_the_sequence_in_vllm(load: EngineLoader) -> None:
    engine = load()
    updates = run(engine, request(stop_words=((11, 12),), max_new_tokens=500))
    assert updates == [
        SequenceUpdate(1, 0, (11,), prompt=CACHED),
        SequenceUpdate(1, 0, (12,), "stop"),
    ]
    assert load.client.aborted == ["1-0"]


def test_bad_words_of_any_length_are_not_generated(load: EngineLoader) -> None:
    assert tokens_of(run(load(), request(bad_words=((11,), (12, 13))))) == [12, 14, 15]


def test_sequences_have_different_seeds_and_end_independently(load: EngineLoader) -> None:
    engine = load()
    updates = run(engine, request(num_return_sequences=2, top_k=5, seed=2**63 - 1))
    assert [tokens_of(updates, sequence) for sequence in (0, 1)] == [[11, 12, 13]] * 2
    assert [each.sampling_params.seed for each in load.client.requests] == [2**63 - 1, 0]
    assert [each.sequence_index for each in updates if each.finish_reason] == [0, 1]


def test_log_probabilities_arrive_with_the_tokens(load: EngineLoader) -> None:
    updates = run(load(), request(return_log_probs=True, max_new_tokens=2))
    assert updates == [
        SequenceUpdate(1, 0, (11,), None, (-0.5,), -0.5, prompt=CACHED),
        SequenceUpdate(1, 0, (12,), "length", (-0.5,), -1.0),
    ]


def test_performance_metrics_come_from_the_scheduler(load: EngineLoader) -> None:
    (update,) = run(load(), request(return_perf_metrics=True, max_new_tokens=1))
    assert update.perf is not None
    first_ns = update.perf.first_token_time_ns
    assert update.perf == PerfMetrics(1, 0, 1, 2_000_000_000, first_ns, first_ns)


def test_alternatives_follow_the_token_in_each_row(load: EngineLoader) -> None:
    engine = load()
    first, _ = run(engine, request(return_log_probs=True, num_top_log_probs=2, max_new_tokens=2))
    assert (first.log_probs, first.top_log_probs) == ((-0.5,), (((100, -1.0), (101, -2.0)),))
    assert last_request(load).sampling_params.logprobs == 2


def test_first_sequence_has_the_log_probabilities_of_the_prompt(load: EngineLoader) -> None:
    engine = load()
    updates = run(
        engine,
        request(
            return_prompt_log_probs=True,
            num_top_log_probs=1,
            num_return_sequences=2,
            max_new_tokens=1,
        ),
    )
    prompts = {each.sequence_index: each.prompt for each in updates}
    assert prompts == {0: PromptFacts(0, (-0.5,), (((100, -1.0),),)), 1: None}
    skips = [each.sampling_params.skip_reading_prefix_cache for each in load.client.requests]
    assert skips == [True, False]


def test_first_update_has_the_number_of_cached_tokens(load: EngineLoader) -> None:
    updates = run(load(), request())
    assert [each.prompt for each in updates] == [CACHED, None, None]


def test_bias_and_min_p_are_passed_to_vllm(load: EngineLoader) -> None:
    updates = run(load(), request(logit_bias=((77, 5.0),), min_p=0.25, top_p=0.9))
    assert tokens_of(updates) == [77, 77, 77]
    assert last_request(load).sampling_params.min_p == 0.25


def test_requests_run_together(load: EngineLoader) -> None:
    engine = load()
    updates = run(engine, *(request(number, max_new_tokens=20) for number in range(8)))
    order = [each.request_id for each in updates]
    assert sorted(order) == sorted([*range(8)] * 20)
    assert order != sorted(order)


def test_a_cancelled_request_is_aborted_and_gets_no_more_updates(load: EngineLoader) -> None:
    engine = load()
    engine.submit(request(max_new_tokens=500))
    while not engine.step():
        pass
    engine.cancel(1)
    assert (engine.has_work(), load.client.aborted) == (False, ["1-0"])
    assert {each.request_id for each in run(engine, request(2))} == {2}
    engine.cancel(3)


def test_a_failed_request_does_not_affect_others(load: EngineLoader) -> None:
    updates = run(load(), request(1, 991), request(2))
    why = "the engine ended the request (internal error); retry the request"
    assert SequenceUpdate(1, error=why) in updates
    assert updates[-1] == SequenceUpdate(2, 0, (13,), "length")


@pytest.mark.parametrize("first", [992, 994], ids=["reported", "silent"])
def test_a_dead_engine_core_ends_the_engine(load: EngineLoader, first: int) -> None:
    engine = load()
    with pytest.raises(Exception, match=r"core has failed|EngineCore encountered"):
        run(engine, request(1, 993), request(2, first))


def test_an_engine_core_that_dies_while_idle_is_detected(load: EngineLoader) -> None:
    engine = load()
    assert not engine.has_work()
    load.client.resources.engine_dead = True
    assert engine.has_work()
    with pytest.raises(Exception, match="EngineCore encountered an issue"):
        engine.step()


def test_a_step_does_not_wait_for_a_slow_request(load: EngineLoader) -> None:
    engine = load()
    engine.submit(request(1, 993))
    assert engine.step() == []


def test_statistics_of_the_last_step_are_reported_while_requests_run(load: EngineLoader) -> None:
    engine = load()
    assert engine.stats() == EngineStats(kv_blocks_max=100, tokens_per_block=4)
    engine.submit(request(max_new_tokens=500))
    while not engine.step():
        pass
    stats = engine.stats()
    assert stats == EngineStats(
        active_requests=1,
        scheduled_requests=1,
        waiting_requests=2,
        kv_blocks_max=100,
        kv_blocks_used=1,
        tokens_per_block=4,
        iteration=stats.iteration,
        context_tokens=stats.context_tokens,
        kv_blocks_reused=2,
        kv_blocks_missed=1,
    )
    assert stats.iteration >= 1
    engine.cancel(1)
    assert engine.stats() == EngineStats(
        kv_blocks_max=100,
        tokens_per_block=4,
        iteration=stats.iteration,
        kv_blocks_reused=2,
        kv_blocks_missed=1,
    )


def test_preemptions_are_counted(load: EngineLoader) -> None:
    engine = load()
    from vllm.v1.engine import (
        EngineCoreEvent,
        EngineCoreEventType,
        EngineCoreOutput,
        EngineCoreOutputs,
    )

    for event in (EngineCoreEventType.QUEUED, *[EngineCoreEventType.PREEMPTED] * 2):
        output = EngineCoreOutput("gone-0", [], events=[EngineCoreEvent(event, 1.0)])
        load.client.outputs_queue.put(EngineCoreOutputs([output]))
        engine.step()
    assert engine.stats().preemptions == 2


def test_the_context_length_is_the_one_that_vllm_has_room_for(load: EngineLoader) -> None:
    assert load(max_model_len=512).limits == EngineLimits(512, 1, 1000)


def test_argument_groups_become_vllm_objects(load: EngineLoader) -> None:
    load(structured_outputs_config={"backend": "xgrammar"}, tensor_parallel_size=2)
    assert load.client.config.structured_outputs_config.backend == "xgrammar"
    assert load.client.config.arguments.tensor_parallel_size == 2


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            {"paged": True},
            "vLLM does not support the engine arguments paged; remove them from vllm_args",
        ),
        (
            {"gpu_memory_utilization": 2.0},
            "vLLM rejects the model's arguments: gpu_memory_utilization: Input should be at most 1",
        ),
    ],
    ids=["unknown", "out of range"],
)
def test_rejects_invalid_arguments(load: EngineLoader, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError) as raised:
        load(**arguments)
    assert str(raised.value) == why


def test_a_guide_ends_with_the_tokenizers_end_token(load: EngineLoader) -> None:
    engine = load()
    run(engine, request(guide_type="regex", guide="[0-9]"))
    params = last_request(load).sampling_params
    assert (params.structured_outputs.regex, params.stop_token_ids) == ("[0-9]", [2])


def test_rejects_an_invalid_guide(load: EngineLoader) -> None:
    with pytest.raises(InvalidRequest, match=r"vLLM rejected the request: missing \)"):
        load().submit(request(guide_type="regex", guide="("))


def test_a_request_runs_with_its_adapter(load: EngineLoader, tmp_path: Path) -> None:
    pirate = write_peft(tmp_path / "all" / "pirate", make_adapter(SITES, ["q_proj"]))
    options = {"lora_prefetch_dir": str(pirate.parent)}
    engine = load(options, model=write_checkpoint(tmp_path), enable_lora=True)
    assert len(run(engine, request(1), request(2, lora_name="pirate"))) == 6
    adapters = [each.lora_request and each.lora_request.lora_path for each in load.client.requests]
    assert adapters == [None, str(pirate)]
    why = "no adapter with the lora_name 'monk' is available; send one of these names: pirate"
    unknown = SequenceUpdate(3, error=why, rejected=True)
    assert run(engine, request(3, lora_name="monk")) == [unknown]
    (pirate / "adapter_config.json").unlink()
    gone = SequenceUpdate(4, error="Call to add_lora method failed: no adapter there")
    assert run(engine, request(4, lora_name="pirate")) == [gone]


def test_adapters_of_running_requests_are_kept(load: EngineLoader, tmp_path: Path) -> None:
    options = {"lora_cache_host_memory_bytes": 1}
    engine = load(options, model=write_checkpoint(tmp_path), enable_lora=True)

    def submit(number: int, **fields: Any) -> Path:
        """Submit a request and return its adapter's folder."""
        num_requests = len(load.client.requests)
        engine.submit(request_with_adapter(number, tmp_path, **fields))
        while len(load.client.requests) == num_requests:
            engine.step()
        return Path(last_request(load).lora_request.lora_path)

    first, second = submit(1, max_new_tokens=1000), submit(2, max_new_tokens=1000)
    assert first.exists() and second.exists()
    engine.cancel(1)
    third = submit(3)
    assert [each.exists() for each in (first, second, third)] == [False, True, True]
    engine.cancel(2)


def test_adapters_of_finished_requests_are_evicted(load: EngineLoader, tmp_path: Path) -> None:
    options = {"lora_cache_host_memory_bytes": 1}
    engine = load(options, model=write_checkpoint(tmp_path), enable_lora=True)
    for number in (1, 2):
        run(engine, request_with_adapter(number, tmp_path))
    folders = [Path(each.lora_request.lora_path) for each in load.client.requests]
    assert [each.exists() for each in folders] == [False, True]


def test_rejects_an_adapter_for_a_model_without_adapters(load: EngineLoader) -> None:
    with pytest.raises(InvalidRequest, match="this model was imported without"):
        load().submit(request(lora_name="pirate"))
