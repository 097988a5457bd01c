"""Test the conversion of vLLM's outputs to updates."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from trtllm_serve_cli.runtime.engine import GenerationRequest, PromptFacts
from trtllm_serve_cli.runtime.engines.vllm.outputs import SequenceReader


def rows(*log_probs: list[float]) -> SimpleNamespace:
    """Return rows of log probabilities. The tokens of each row are numbered from 7."""
    width = len(log_probs[0])
    return SimpleNamespace(
        logprob_token_ids=np.array([range(7, 7 + width)] * len(log_probs)),
        logprobs=np.array(log_probs, dtype=np.float32),
    )


def output(*token_ids: int, **fields: Any) -> SimpleNamespace:
    unset = dict.fromkeys(
        ("finish_reason", "prefill_stats", "new_logprobs", "new_prompt_logprobs_tensors")
    )
    return SimpleNamespace(**{**unset, "new_token_ids": list(token_ids), **fields})


def test_log_probabilities_are_finite() -> None:
    request = GenerationRequest(
        *(1, (1, 2), 5),
        return_log_probs=True,
        num_top_log_probs=2,
        return_prompt_log_probs=True,
    )
    update = SequenceReader(request, 0, tokens_per_block=16).read(
        output(
            *(7, 7),
            new_logprobs=rows([0.0, 0.0, -math.inf], [math.nan, math.nan, math.nan]),
            new_prompt_logprobs_tensors=rows([-math.inf, -1.0, -math.inf]),
        ),
        timestamp_s=1.0,
    )
    assert update is not None
    assert update.log_probs == (0.0, -9999.0)
    assert update.cum_log_prob == -9999.0
    assert update.top_log_probs == (((8, 0.0), (9, -9999.0)), ((8, -9999.0), (9, -9999.0)))
    assert update.prompt == PromptFacts(None, (-9999.0,), (((8, -1.0), (9, -9999.0)),))
