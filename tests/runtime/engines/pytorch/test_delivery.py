"""Test that every response reaches its request, with TensorRT-LLM's rules for waking readers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.fakes.stand_in_engines import EngineLoader, engines_on, request

NUM_REQUESTS, AT_ONCE, NUM_TOKENS = 2000, 64, 4


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


def work_between_steps(load: EngineLoader) -> None:
    """Wait until the executor has delivered responses, as a worker that sends updates does."""
    executor = load.client.executor
    seen = executor.num_steps
    while executor.num_steps == seen:
        time.sleep(0)


@pytest.mark.timeout(60)
def test_all_of_many_requests_end(load: EngineLoader) -> None:
    engine = load()
    waiting = iter(range(NUM_REQUESTS))
    open_requests: set[int] = set()
    tokens: Counter[int] = Counter()
    while len(tokens) < NUM_REQUESTS or open_requests:
        for number in islice(waiting, AT_ONCE - len(open_requests)):
            engine.submit(request(number, max_new_tokens=NUM_TOKENS))
            open_requests.add(number)
        for update in engine.step():
            tokens[update.request_id] += len(update.token_ids)
            if update.finish_reason is not None:
                open_requests.remove(update.request_id)
        work_between_steps(load)
    assert tokens == dict.fromkeys(range(NUM_REQUESTS), NUM_TOKENS)
    assert not engine.has_work()


@pytest.mark.timeout(60)
def test_cancellations_do_not_affect_other_requests(load: EngineLoader) -> None:
    engine = load()
    cancelled = frozenset(range(0, 300, 7))
    tokens: Counter[int] = Counter()
    for number in range(300):
        engine.submit(request(number, max_new_tokens=NUM_TOKENS))
        if number in cancelled:
            engine.cancel(number)
    while engine.has_work():
        for update in engine.step():
            tokens[update.request_id] += len(update.token_ids)
    assert tokens == dict.fromkeys(set(range(300)) - cancelled, NUM_TOKENS)
    assert all(each.result.is_aborted or each.result.finished for each in load.client.requests)
