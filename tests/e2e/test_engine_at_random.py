"""Random requests neither make a step of the engine raise nor leave anything behind.

OpenVINO GenAI 2026.4 raises about once in several thousand such requests, when beams end or drafts
are verified. This cannot be predicted; the worker is restarted.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from typing import Any

import numpy as np
import pytest

from tests.e2e.openvino_engine import load
from trtllm_serve_cli.runtime.engine import (
    EngineStats,
    GenerationRequest,
    InvalidRequest,
    SequenceUpdate,
)
from trtllm_serve_cli.runtime.request_check import check_request, fit_to_vocabulary

VOCAB_SIZE, NUM_CONCURRENT = 49152, 8
SEED = int(os.environ.get("TLLM_TEST_SEED", "1"))
# Field -> its possible values, mainly edge cases.
CHOICES: dict[str, tuple[Any, ...]] = {
    "end_id": (None, -1, 0, 2, VOCAB_SIZE - 1, VOCAB_SIZE, 2**31 - 1, -(2**31)),
    "max_new_tokens": (1, 1, 2, 3, 8, 20, 33, 3000, 2**31 - 1),
    "beam_width": (1, 1, 1, 2, 3, 4),
    "num_return_sequences": (1, 1, 1, 2, 5),
    "temperature": (None, None, 0.0, 1e-30, 0.01, 1.0, 1e4),
    "top_k": (None, None, 0, 1, 2, VOCAB_SIZE - 1, VOCAB_SIZE),
    "top_p": (None, None, 0.0, 1e-30, 1e-7, 0.5, 0.999999, 1.0),
    "seed": (None, 0, 2**32, 2**63, 2**64 - 1),
    "repetition_penalty": (None, None, None, 1e-4, 0.5, 1.0, 1e4),
    "presence_penalty": (None, None, None, -1e4, -2.0, 0.0, 2.0),
    "frequency_penalty": (None, None, None, -2.0, 0.0, 2.0, 2.1),
    "len_penalty": (None, None, -1e4, 0.0, 1e4),
    "early_stopping": (None, True, False),
    "beam_search_diversity_rate": (None, None, 1e-6, 0.5, 1e4),
    "min_tokens": (None, None, 0, 1, 2, 8),
    "return_log_probs": (False, True),
    "return_perf_metrics": (False, True),
    "guide": (*[("", "")] * 24, ("json", ""), ("json_schema", '{"type": "integer"}'),
              ("json_schema", "false"), ("regex", "[a-z]{2}"), ("regex", "^$"), ("regex", "("),
              ("ebnf_grammar", "root ::= root"), ("ebnf_grammar", 'root ::= ""'),
              ("structural_tag", json.dumps({"type": "structural_tag"}))),
}  # fmt: skip


def draw(number: int, rng: random.Random) -> GenerationRequest:
    fields = {name: rng.choice(values) for name, values in CHOICES.items()}
    kind, guide = fields.pop("guide")
    for field, share in (("stop_words", 0.2), ("bad_words", 0.04)):
        if rng.random() < share:
            fields[field] = tuple(
                tuple(draw_ids(rng, rng.choice((1, 2, 5)))) for _ in range(rng.choice((1, 2, 5)))
            )
    prompt = tuple(draw_ids(rng, rng.choice((1, 2, 31, 32, 33, 64, 300))))
    return GenerationRequest(number, prompt, guide_type=kind or None, guide=guide, **fields)


def draw_ids(rng: random.Random, number: int) -> list[int]:
    return [rng.choice((0, 2, rng.randrange(VOCAB_SIZE))) for _ in range(number)]


@pytest.mark.parametrize(
    ("fixture", "num_requests"),
    [("quick_engine", 300), ("engine_dir", 60)],
    ids=["a model of one layer", "a model of four layers"],
)
def test_no_step_raises_for_random_requests(
    request: pytest.FixtureRequest, fixture: str, num_requests: int
) -> None:
    folder = request.getfixturevalue(fixture)
    engine = load(folder, max_tokens_in_paged_kv_cache=2048)
    try:
        run_random_requests(engine, num_requests)
    finally:
        engine.close()


def test_draws_include_each_value() -> None:
    rng = random.Random(SEED)
    drawn = [draw(number, rng) for number in range(300)]
    guides = {(each.guide_type or "", each.guide) for each in drawn}
    assert guides == set(CHOICES["guide"])
    for field in CHOICES.keys() - {"guide"}:
        assert {getattr(each, field) for each in drawn} == set(CHOICES[field]), field
    assert any(each.stop_words for each in drawn) and any(each.bad_words for each in drawn)


def run_random_requests(engine: Any, num_requests: int) -> None:
    rng = random.Random(SEED)
    requests: dict[int, GenerationRequest] = {}
    running: set[int] = set()
    while len(requests) < num_requests:
        while len(running) < NUM_CONCURRENT:
            request = draw(len(requests) + 1, rng)
            requests[request.id] = request
            with contextlib.suppress(InvalidRequest):
                check_request(request, engine.limits)
                engine.submit(fit_to_vocabulary(request, engine.limits))
                running.add(request.id)
        if rng.random() < 0.1:
            cancelled = rng.choice(sorted(running))
            engine.cancel(cancelled)
            running.remove(cancelled)
        updates = engine.step()
        for update in updates:
            assert is_sound(update), requests[update.request_id]
        # All sequences of a request end in the same step.
        running -= {each.request_id for each in updates if each.error or each.finish_reason}
    for number in running:
        engine.cancel(number)
    while engine.has_work():
        assert engine.step() == []
    stats: EngineStats = engine.stats()
    assert (stats.active_requests, stats.waiting_requests, stats.kv_blocks_used) == (0, 0, 0)


def is_sound(update: SequenceUpdate) -> bool:
    return all(0 <= token < VOCAB_SIZE for token in update.token_ids) and bool(
        np.isfinite([*update.log_probs, update.cum_log_prob or 0.0]).all()
    )
