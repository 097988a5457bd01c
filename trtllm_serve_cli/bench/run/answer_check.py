"""Check, before a benchmark, that text models return the same text for the same prompt.

In triton-inference-server/tensorrtllm_backend (tags v0.8.0 to v0.19.0), the
tools/inflight_batcher_llm/end_to_end_test.py benchmark starts with a similar test. That test
compares the response of `ensemble` with the response obtained by calling the ensemble's models one
after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.served_model import Target
from trtllm_serve_cli.client.ask import stream_in_thread
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.model_info import (
    UPSTREAM_TEXT_MODELS,
    ModelInfo,
    fetch_model_config,
)
from trtllm_serve_cli.errors import CheckFailed, RequestFailed

_EXCERPT = 40


def check_answers(target: Target, settings: BenchmarkSettings) -> list[str]:
    """Send a prompt twice to the target's model and once to each other model with text input.

    The other models are `ensemble` and `tensorrt_llm_bls`, if the server has them. Return the names
    of the compared models. Raise `CheckFailed` if the texts differ, `NoServer` if the server cannot
    be reached, `RequestFailed` if a request fails, or `BadInput` if a model lacks an input.
    """
    request = plan_request(settings)
    info = fetch_model_config(target.endpoint, target.model, target.interface)

    def ask(model: ModelInfo) -> str:
        arriving = stream_in_thread(
            target.endpoint, model.name, request, target.interface, settings.timeout_s, model
        )
        with closing(arriving):
            return "".join(piece.text for piece in arriving)

    expected = ask(info)
    _compare(info.name, expected, info.name, ask(info))
    others = list(_find_others(target, info))
    for other in others:
        _compare(info.name, expected, other.name, ask(other))
    return [info.name, *(other.name for other in others)]


def plan_request(settings: BenchmarkSettings) -> GenerateRequest:
    """Return a request with greedy sampling and, if possible, a prompt that is not measured.

    After the check, the prompt may be in the server's KV cache. If the benchmark then measured a
    request with the same prompt, the latency would be too low. With a data set, the request uses
    the first warm-up prompt or, without a warm-up, the last prompt of the data set. The measurement
    sends this prompt again only if it reaches the end of the data set. With a random workload, any
    prompt is suitable, because the measurement sends other random prompts.
    """
    start = -max(settings.num_warmup_requests, 1)
    (spec,) = settings.workload.draw(1, 1, np.random.default_rng(settings.seed), start)
    assert spec.text is not None
    return GenerateRequest(spec.text, spec.num_output_tokens, stream=False, top_k=1)


def _find_others(target: Target, info: ModelInfo) -> Iterator[ModelInfo]:
    for role in UPSTREAM_TEXT_MODELS:
        name = info.name_of(role)
        if name == info.name:
            continue
        try:
            other = fetch_model_config(target.endpoint, name, target.interface)
        except RequestFailed:  # usually because the server does not have this model
            continue
        yield other


def _compare(first: str, expected: str, second: str, received: str) -> None:
    if received == expected:
        return
    pairs = zip(expected, received, strict=False)
    shorter = min(len(expected), len(received))
    start = next((at for at, (one, other) in enumerate(pairs) if one != other), shorter)
    left, right = (text[start : start + _EXCERPT] for text in (expected, received))
    what = (
        f"{first} returned two different responses to the same prompt."
        if first == second
        else f"{first} and {second} returned different responses to the same prompt."
    )
    raise CheckFailed(
        what,
        why=f"sampling is greedy, but the responses differ starting at character {start + 1}: "
        f"{left!r} and {right!r}",
        next_step="run `tllm infer -m NAME --top-k 1` to compare the responses, or add "
        "--no-check-answers to skip the check",
    )


def describe_check(names: Sequence[str]) -> str:
    """Return the line to print if the check passes."""
    others = f", and {' and '.join(names[1:])} returned the same response" if names[1:] else ""
    return f"Functionality check passed: {names[0]} returned the same response twice{others}."
