"""Test the inputs and outputs of the LLM API's engine with a fake LLM API."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
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


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLoader]:
    """Return a function that loads an engine with the given `LLM` arguments."""
    with engines_on(
        "engines.pytorch.engine",
        "PyTorchEngine",
        "tensorrt_llm.llmapi",
        "TLLM_ALLOW_N_GREEDY_DECODING",
        monkeypatch,
    ) as load:
        yield load


def last_request(load: EngineLoader) -> Any:
    """Return the last request that the package received."""
    return load.client.requests[-1]


def wait_until(engine: Any, condition: Callable[[], bool]) -> None:
    """Run steps until the condition is met."""
    while not condition():
        engine.step()


def test_tokens_arrive_as_they_are_generated(load: EngineLoader) -> None:
    engine = load()
    assert run(engine, request()) == [
        SequenceUpdate(1, 0, (11,)),
        SequenceUpdate(1, 0, (12,)),
        SequenceUpdate(1, 0, (13,), "length"),
    ]
    assert (last_request(load).inputs, last_request(load).streaming) == ([5, 10], True)


def test_the_end_token_ends_the_sequence_and_is_not_returned(load: EngineLoader) -> None:
    assert run(load(), request(end_id=12)) == [
        SequenceUpdate(1, 0, (11,)),
        SequenceUpdate(1, 0, (), "stop"),
    ]


def test_a_stop_word_of_several_tokens_aborts_the_request_in_the_executor(
    load: EngineLoader,
) -> None:
    engine = load()
    updates = run(engine, request(stop_words=((11, 12),), max_new_tokens=500))
    assert updates == [SequenceUpdate(1, 0, (11,)), SequenceUpdate(1, 0, (12,), "stop")]
    assert last_request(load).result.is_aborted


def test_bad_words_of_any_length_are_not_generated(load: EngineLoader) -> None:
    updates = run(load(), request(bad_words=((11,), (12, 13))))
    assert [token for each in updates for token in each.token_ids] == [12, 14, 15]


def test_sequences_end_independently(load: EngineLoader) -> None:
    updates = run(load(), request(num_return_sequences=2, stop_words=((12,),)))
    assert updates == [
        SequenceUpdate(1, 0, (11,)),
        SequenceUpdate(1, 1, (111,)),
        SequenceUpdate(1, 0, (12,), "stop"),
        SequenceUpdate(1, 1, (112,)),
        SequenceUpdate(1, 1, (113,), "length"),
    ]


def test_beams_arrive_together(load: EngineLoader) -> None:
    engine = load(max_beam_width=2)
    updates = run(engine, request(beam_width=2, num_return_sequences=2, max_new_tokens=2))
    assert updates == [
        SequenceUpdate(1, 0, (11, 12), "length"),
        SequenceUpdate(1, 1, (111, 112), "length"),
    ]
    assert not last_request(load).streaming


def test_log_probabilities_arrive_with_the_tokens(load: EngineLoader) -> None:
    updates = run(load(), request(return_log_probs=True, max_new_tokens=2))
    assert updates == [
        SequenceUpdate(1, 0, (11,), None, (-0.5,), -0.5),
        SequenceUpdate(1, 0, (12,), "length", (-0.5,), -1.0),
    ]


def test_alternatives_and_the_prompt_have_log_probabilities(load: EngineLoader) -> None:
    engine = load(sampler_type="TorchSampler")
    options = {"num_top_log_probs": 2, "return_prompt_log_probs": True}
    (update,) = run(engine, request(max_new_tokens=1, **options))
    assert update.top_log_probs == (((11, -0.5), (900, -1.0)),)
    assert update.prompt == PromptFacts(None, (-0.5,), (((10, -0.5), (900, -1.0)),))


def test_the_bias_is_a_tensor_of_the_whole_vocabulary(
    load: EngineLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(from_numpy=np.copy))
    engine = load()
    run(engine, request(logit_bias=((7, 2.5), (999, -100.0))))
    bias = last_request(load).params.embedding_bias
    assert (bias.shape, bias.dtype) == ((1000,), np.float32)
    assert {int(token): float(bias[token]) for token in np.flatnonzero(bias)} == {
        7: 2.5,
        999: -100.0,
    }


def test_performance_metrics_are_those_of_the_executor(load: EngineLoader) -> None:
    (update,) = run(load(), request(return_perf_metrics=True, max_new_tokens=1))
    second = 1_000_000_000
    assert update.perf == PerfMetrics(4, 3, 1, 2 * second, 3 * second, 4 * second, 2, 4)


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
    assert not engine.has_work()
    wait_until(engine, lambda: last_request(load).result.is_aborted)
    assert {each.request_id for each in run(engine, request(2))} == {2}
    engine.cancel(3)


def test_a_request_cancelled_before_its_first_step_gets_no_updates(load: EngineLoader) -> None:
    engine = load()
    engine.submit(request(1, max_new_tokens=500))
    engine.cancel(1)
    assert {each.request_id for each in run(engine, request(2))} == {2}
    assert all(each.result.is_aborted for each in load.client.requests[:-1])


def test_an_id_can_be_used_again_after_a_cancellation(load: EngineLoader) -> None:
    engine = load()
    engine.submit(request(1, max_new_tokens=500))
    wait_until(engine, lambda: bool(load.client.requests))
    engine.cancel(1)
    updates = run(engine, request(1, max_new_tokens=2))
    assert updates == [SequenceUpdate(1, 0, (11,)), SequenceUpdate(1, 0, (12,), "length")]


def test_close_ends_all_requests_and_the_thread(load: EngineLoader) -> None:
    engine = load()
    for number in range(3):
        engine.submit(request(number, max_new_tokens=500))
    wait_until(engine, lambda: len(load.client.requests) == 3)
    engine.close()
    load.engines.clear()
    assert all(each.result.is_aborted for each in load.client.requests)
    assert "llm-api" not in [each.name for each in threading.enumerate()]


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (991, "the request does not fit"),
        (994, "the engine ended the request (cancelled); retry the request"),
    ],
)
def test_a_failed_request_does_not_affect_others(load: EngineLoader, first: int, why: str) -> None:
    updates = run(load(), request(1, first), request(2))
    assert SequenceUpdate(1, error=why) in updates
    assert updates[-1] == SequenceUpdate(2, 0, (13,), "length")


def test_a_dead_executor_ends_the_engine(load: EngineLoader) -> None:
    engine = load()
    with pytest.raises(RuntimeError, match="the executor is gone"):
        run(engine, request(1, 993), request(2, 992))
    with pytest.raises(RuntimeError, match="the executor is gone"):
        engine.step()


def test_a_step_does_not_wait_for_a_slow_request(load: EngineLoader) -> None:
    engine = load()
    engine.submit(request(1, 993))
    assert engine.step() == []


def test_statistics_of_the_last_iteration_are_reported_while_requests_run(
    load: EngineLoader,
) -> None:
    engine = load()
    assert engine.stats() == EngineStats()
    engine.submit(request(max_new_tokens=500))
    wait_until(engine, lambda: engine.stats().iteration > 0)
    # The executor continues in its own thread, so each call can return a later iteration.
    running = engine.stats()
    assert running == EngineStats(
        active_requests=1,
        scheduled_requests=1,
        waiting_requests=3,
        kv_blocks_max=100,
        kv_blocks_used=6,
        tokens_per_block=32,
        iteration=running.iteration,
        memory_bytes=1 << 20,
        gpu_memory_bytes=1 << 30,
        pinned_memory_bytes=1 << 10,
        micro_batch_id=1,
        kv_blocks_reused=4,
        kv_blocks_missed=12,
    )
    engine.cancel(1)
    at_rest = engine.stats()
    assert at_rest.iteration >= running.iteration
    assert at_rest == replace(
        running,
        active_requests=0,
        scheduled_requests=0,
        waiting_requests=0,
        kv_blocks_used=0,
        iteration=at_rest.iteration,
        micro_batch_id=0,
    )


@pytest.mark.parametrize("version", ["1.0.0", "1.2.0rc5", "1.2.1", "1.3.0rc26"])
def test_statistics_continue_while_a_request_runs(
    load: EngineLoader, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("STAND_IN_TRTLLM", version)
    engine = load()
    statistics = "trtllm_serve_cli.runtime.engines.pytorch.statistics"
    # Query faster than the executor runs iterations, so that queries time out.
    monkeypatch.setattr(sys.modules[statistics], "PERIOD_S", 0.001)
    monkeypatch.setattr(sys.modules[statistics], "TIMEOUT_S", 0.0005)
    engine.submit(request(max_new_tokens=1000))
    iterations: set[int] = set()
    while engine.has_work() and len(iterations) < 4:
        engine.step()
        iterations.add(engine.stats().iteration)
    assert len(iterations) == 4
    engine.cancel(1)


def test_without_guides_no_tokenizer_is_loaded(load: EngineLoader) -> None:
    engine = load(tokenizer="/tok", max_beam_width=1)
    assert load.client.arguments == {
        "model": "/m",
        "max_beam_width": 1,
        "skip_tokenizer_init": True,
        "enable_iter_perf_stats": True,
        "sampler_type": "TRTLLMSampler",
    }
    assert engine.limits == EngineLimits(1024, 1, 1000)


def test_guides_need_the_tokenizer(load: EngineLoader) -> None:
    engine = load(tokenizer="/tok", guided_decoding_backend="xgrammar")
    run(engine, request(guide_type="regex", guide="[0-9]"))
    assert last_request(load).params.guided_decoding.regex == "[0-9]"
    assert load.client.arguments["tokenizer"] == "/tok"
    assert "skip_tokenizer_init" not in load.client.arguments


def test_speculative_decoding_is_checked_by_its_type(load: EngineLoader) -> None:
    engine = load(speculative_config={"decoding_type": "NGram", "max_draft_len": 4})
    with pytest.raises(InvalidRequest, match=r"speculative decoding \(NGram\)"):
        engine.submit(request(return_log_probs=True))


def test_a_request_runs_with_its_adapter(load: EngineLoader, tmp_path: Path) -> None:
    pirate = write_peft(tmp_path / "all" / "pirate", make_adapter(SITES, ["q_proj"]))
    options = {"lora_prefetch_dir": str(pirate.parent)}
    engine = load(options, model=write_checkpoint(tmp_path), lora_config={"max_lora_rank": 8})
    assert len(run(engine, request(1), request(2, lora_name="pirate"))) == 6
    adapters = [each.lora and each.lora.lora_path for each in load.client.requests]
    assert adapters == [None, str(pirate)]
    why = "no adapter with the lora_name 'monk' is available; send one of these names: pirate"
    unknown = SequenceUpdate(3, error=why, rejected=True)
    assert run(engine, request(3, lora_name="monk")) == [unknown]


def test_adapters_of_running_requests_are_kept(load: EngineLoader, tmp_path: Path) -> None:
    options = {"lora_cache_host_memory_bytes": 1}
    engine = load(options, model=write_checkpoint(tmp_path), lora_config={"max_lora_rank": 8})

    def submit(number: int, **fields: Any) -> Path:
        """Submit a request and return its adapter's folder."""
        num_requests = len(load.client.requests)
        engine.submit(request_with_adapter(number, tmp_path, **fields))
        while len(load.client.requests) == num_requests:
            engine.step()
        return Path(last_request(load).lora.lora_path)

    first, second = submit(1, max_new_tokens=1000), submit(2, max_new_tokens=1000)
    assert first.exists() and second.exists()
    engine.cancel(1)
    third = submit(3)
    assert [each.exists() for each in (first, second, third)] == [False, True, True]
    engine.cancel(2)


def test_rejects_an_adapter_for_a_model_without_adapters(load: EngineLoader) -> None:
    with pytest.raises(InvalidRequest, match="this model was imported without"):
        load().submit(request(lora_name="pirate"))
