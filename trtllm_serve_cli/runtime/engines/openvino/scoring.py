"""Compute prompt log probabilities with a second copy of the model.

OpenVINO GenAI's `echo` option cannot be used, because it does not return alternatives. It also
omits tokens in reused KV cache blocks and mixes up the values of requests that share a step
(observed with OpenVINO GenAI 2026.4.1).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from ...engine import (
    GenerationRequest,
    InvalidRequest,
    PromptFacts,
    SequenceUpdate,
    TokenLogProb,
    last_line,
)
from ...triton.tensors import Array
from ..sequence_end import find_end
from .threads import thread_properties

# The number of prompt tokens per inference. It limits the memory that the logits need.
CHUNK_SIZE = 128


class Scorer:
    """A second copy of the model that computes prompt log probabilities in a separate thread.

    Requests for prompt log probabilities generate at most one token, which the scorer also selects.
    The model in `engine_dir` is loaded when the first request arrives. If `num_threads` is 0,
    `thread_properties` chooses the number of threads. If `has_adapter` is true, all requests are
    rejected, because this copy of the model does not apply the adapter. `pending` maps the id of
    each request in flight to its future.
    """

    def __init__(self, engine_dir: Path, num_threads: int, *, has_adapter: bool) -> None:
        self.pending: dict[int, Future[SequenceUpdate]] = {}
        self._engine_dir = engine_dir
        self._properties = thread_properties(num_threads)
        self._has_adapter = has_adapter
        self._model: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scorer")

    def submit(self, request: GenerationRequest) -> None:
        """Start computing log probabilities. Raise `InvalidRequest` if they are not supported."""
        check_scorable(request)
        if self._has_adapter:
            raise InvalidRequest(
                "Prompt log probabilities (echo with logprobs) are not supported with LoRA "
                "adapters. Omit the adapter, or omit echo."
            )
        self.pending[request.id] = self._thread.submit(self._score, request)

    def cancel(self, request_id: int) -> None:
        """Cancel a request and discard its update."""
        if (future := self.pending.pop(request_id, None)) is not None:
            future.cancel()

    def take(self) -> list[SequenceUpdate]:
        """Return the updates for the requests that have ended since the last call."""
        done = [each for each, future in self.pending.items() if future.done()]
        return [self.pending.pop(each).result() for each in done]

    def close(self) -> None:
        """Cancel the waiting requests and stop the thread after the current request."""
        self._thread.shutdown(cancel_futures=True)

    def _score(self, request: GenerationRequest) -> SequenceUpdate:
        try:
            if self._model is None:
                self._model = load_model(self._engine_dir, self._properties)
            return score(self._model, request)
        except Exception as error:  # an error in one request must not affect other requests
            why = (
                f"the prompt log probabilities cannot be computed: {last_line(error)}; send the "
                "request without echo or without logprobs"
            )
            return SequenceUpdate(request.id, error=why)


def check_scorable(request: GenerationRequest) -> None:
    """Raise `InvalidRequest` if `score` does not support the request.

    The request must generate a single sequence of at most one token with greedy decoding. It must
    not use a penalty, min_tokens, bad words, a guide or a logit bias.
    """
    limits = {
        "max_tokens above 1": request.max_new_tokens > 1,
        "n above 1": max(request.beam_width, request.num_return_sequences) > 1,
        "a temperature above 0": not request.is_greedy,
        "min_tokens": bool(request.min_tokens),
        "bad_words": bool(request.bad_words),
        "guided_decoding_guide_type": request.guide_type is not None,
        "logit_bias": bool(request.logit_bias),
        **{
            name: getattr(request, name) not in (None, neutral)
            for name, neutral in (
                ("repetition_penalty", 1.0),
                ("presence_penalty", 0.0),
                ("frequency_penalty", 0.0),
            )
        },
    }
    for name, is_set in limits.items():
        if is_set:
            raise InvalidRequest(
                f"The openvino engine kind does not support {name} with prompt log probabilities "
                "(echo with logprobs). Set max_tokens to 0 or 1, set temperature to 0, and omit "
                "all other sampling parameters."
            )


def load_model(engine_dir: Path, properties: dict[str, Any]) -> Any:
    """Return an `InferRequest` for the model in `engine_dir`."""
    model = openvino.Core().compile_model(engine_dir / "openvino_model.xml", "CPU", properties)
    return model.create_infer_request()


def score(model: Any, request: GenerationRequest) -> SequenceUpdate:
    """Compute the prompt log probabilities and return the request's only update."""
    tokens, count = request.input_ids, request.num_top_log_probs
    log_probs: list[float] = []
    top: list[tuple[TokenLogProb, ...]] = []
    model.reset_state()
    for start in range(0, len(tokens), CHUNK_SIZE):
        rows = _log_softmax(_infer(model, tokens[start : start + CHUNK_SIZE], start))
        # Each row contains the distribution of the next token.
        targets = tokens[start + 1 : start + 1 + len(rows)]
        log_probs += [float(row[token]) for row, token in zip(rows, targets, strict=False)]
        if count:
            top += [_most_likely(row, count) for row in rows]
    last_row = rows[-1]
    token = int(last_row.argmax())
    length, reason = find_end([token], 0, request)
    selected = float(last_row[token])
    returns = bool(length and request.return_log_probs)
    return SequenceUpdate(
        request.id,
        0,
        (token,)[:length],
        reason,
        (selected,) if returns else (),
        selected if returns else None,
        top_log_probs=tuple(top[-1:]) if length else (),
        prompt=PromptFacts(None, tuple(log_probs), tuple(top[:-1])),
    )


def _infer(model: Any, tokens: tuple[int, ...], start: int) -> Array:
    """Return the logits after each token. `start` is the number of tokens before `tokens`.

    Raise `ValueError` if the model has an unknown input.
    """
    end = start + len(tokens)
    inputs = {
        "input_ids": np.array([tokens], dtype=np.int64),
        "attention_mask": np.ones((1, end), dtype=np.int64),
        "position_ids": np.arange(start, end, dtype=np.int64)[np.newaxis],
        "beam_idx": np.zeros(1, dtype=np.int32),
    }
    names = [each.get_any_name() for each in model.get_compiled_model().inputs]
    if unknown := sorted(set(names) - set(inputs)):
        raise ValueError(f"the model's input {unknown[0]} is not supported")
    model.infer({name: inputs[name] for name in names})
    return np.array(model.get_tensor("logits").data[0])


def _log_softmax(logits: Array) -> Array:
    """Convert each row of logits to log probabilities."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    sums = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
    log_probs: Array = shifted - np.log(sums)
    return log_probs


def _most_likely(row: Array, count: int) -> tuple[TokenLogProb, ...]:
    """Return the `count` most likely tokens of a row, most likely first."""
    count = min(count, len(row))
    ids = np.argpartition(row, -count)[-count:]
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return tuple(zip(ids.tolist(), row[ids].tolist(), strict=True))
