"""Implement the embedding engine that all engine kinds with an embedder share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..embedding import encode_vector
from ..engine import EngineLimits, EngineStats, GenerationRequest, SequenceUpdate
from .embedder import Embedder
from .kinds import find_kind


class EmbeddingEngine:
    """An engine that computes one batch of embeddings per step.

    `config` contains max_batch_size, max_num_tokens, max_seq_len and vocab_size. A batch contains
    at most `max_batch_size` prompts and, after padding to the longest prompt, at most
    `max_num_tokens` tokens. A prompt with more than `max_num_tokens` tokens runs alone. The next
    batch always includes the oldest request. The other requests in the batch are the ones whose
    lengths are closest to that of the oldest request, because they need the least padding.
    """

    def __init__(self, embedder: Embedder, config: dict[str, Any]) -> None:
        self._embedder = embedder
        self._max_batch_size = int(config["max_batch_size"])
        self._max_num_tokens = int(config["max_num_tokens"])
        self._waiting: dict[int, GenerationRequest] = {}
        self._num_steps = self._num_prompts = self._num_tokens = 0
        self.limits = EngineLimits(
            max_seq_len=int(config["max_seq_len"]),
            max_beam_width=1,
            vocab_size=int(config["vocab_size"]),
            computes_embeddings=True,
        )

    def submit(self, request: GenerationRequest) -> None:
        self._waiting[request.id] = request

    def cancel(self, request_id: int) -> None:
        self._waiting.pop(request_id, None)

    def has_work(self) -> bool:
        return bool(self._waiting)

    def step(self) -> list[SequenceUpdate]:
        batch = choose_batch(self._waiting.values(), self._max_batch_size, self._max_num_tokens)
        vectors = self._embedder.embed([each.input_ids for each in batch])
        self._num_steps += 1
        self._num_prompts = len(batch)
        self._num_tokens = sum(len(each.input_ids) for each in batch)
        for each in batch:
            del self._waiting[each.id]
        return [
            SequenceUpdate(each.id, finish_reason="stop", embedding=encode_vector(vector))
            for each, vector in zip(batch, vectors, strict=True)
        ]

    def stats(self) -> EngineStats:
        num_running = min(self._num_prompts, len(self._waiting))
        return EngineStats(
            active_requests=len(self._waiting),
            scheduled_requests=num_running,
            context_requests=num_running,
            waiting_requests=len(self._waiting) - num_running,
            iteration=self._num_steps,
            context_tokens=self._num_tokens if self._waiting else 0,
        )

    def close(self) -> None:
        self._embedder.close()


def choose_batch(
    waiting: Iterable[GenerationRequest], max_batch_size: int, max_num_tokens: int
) -> list[GenerationRequest]:
    """Return the requests for the next batch (see `EmbeddingEngine`), starting with the oldest.

    `waiting` contains at least one request and starts with the oldest request.
    """
    oldest, *others = waiting
    length = len(oldest.input_ids)
    others.sort(key=lambda each: abs(len(each.input_ids) - length))
    batch, longest = [oldest], length
    for each in others:
        longest = max(longest, len(each.input_ids))
        if len(batch) == max_batch_size or longest * (len(batch) + 1) > max_num_tokens:
            break
        batch.append(each)
    return batch


def load_embedding_engine(kind: str, config: dict[str, Any]) -> EmbeddingEngine:
    """Load the embedding engine of an engine kind.

    Raise `ValueError` if the kind is unknown or does not compute embeddings.
    """
    load = find_kind(kind).load_embedder
    if load is None:
        raise ValueError(
            f"the {kind} engine kind does not compute embeddings; serve the model with another "
            "engine kind"
        )
    return EmbeddingEngine(load(config), config)
