"""Replay the arrival times, lengths and shared prefixes of a recorded load.

Trace files use the JSONL format of the published Mooncake traces (kvcache-ai). Each line has the
fields `timestamp` (ms), `input_length`, `output_length` and, optionally, `hash_ids`. `hash_ids`
contains one hash for each block of 512 prompt tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_serve_cli.bench.workloads.jsonl import Line, read_jsonl
from trtllm_serve_cli.bench.workloads.spec import Ids, RequestSpec
from trtllm_serve_cli.errors import BadInput

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request in a trace. `at_s` is the recorded arrival time in seconds."""

    at_s: float
    num_input_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload that replays a trace `speed` times as fast as it was recorded.

    `requests` are sorted by arrival time, and each run starts with the first one. A trace does not
    contain text, so prompts have random ids. In a run, blocks with the same hash have the same ids,
    so prompts share the same prefixes as in the recording. If `max_input_tokens` is set, longer
    prompts are truncated to this length.
    """

    name: str
    requests: tuple[TracedRequest, ...] = field(repr=False)
    max_input_tokens: int | None = None
    speed: float = 1.0

    @property
    def num_available(self) -> int:
        return len(self.requests)

    @property
    def times_s(self) -> tuple[float, ...]:
        return tuple(request.at_s for request in self.requests)

    def draw(
        self,
        num_requests: int,
        vocab_size: int,
        rng: np.random.Generator,
        start: int = 0,
        step: int = 1,
    ) -> list[RequestSpec]:
        seed = int(rng.integers(2**32))
        return [
            RequestSpec(self._prompt(traced, seed, vocab_size, rng), traced.num_output_tokens)
            for traced in self._first(num_requests)
        ]

    def describe(self) -> dict[str, Any]:
        return {
            "trace": self.name,
            "num_available": len(self.requests),
            "max_input_tokens": self.max_input_tokens,
        }

    def _first(self, num_requests: int) -> list[TracedRequest]:
        return [self.requests[index % len(self.requests)] for index in range(num_requests)]

    def _prompt(
        self, traced: TracedRequest, seed: int, vocab_size: int, rng: np.random.Generator
    ) -> Ids:
        length = min(traced.num_input_tokens, self.max_input_tokens or traced.num_input_tokens)
        blocks = [
            np.random.default_rng((seed, hash_id)).integers(
                0, vocab_size, BLOCK_TOKENS, dtype=np.int32
            )
            for hash_id in traced.hash_ids
        ]
        rest = max(length - len(blocks) * BLOCK_TOKENS, 0)
        blocks.append(rng.integers(0, vocab_size, rest, dtype=np.int32))
        prompt: Ids = np.concatenate(blocks)[:length]
        return prompt


def read_trace(file: Path, max_input_tokens: int | None = None, speed: float = 1.0) -> Trace:
    """Read a trace file. Raise `BadInput` if it cannot be read, is empty or has an invalid line."""
    requests = [_parse(line) for line in read_jsonl(file)]
    if not requests:
        raise BadInput(
            f"The trace file {file} is empty.",
            why="it does not contain any requests",
            next_step="pass a trace file with one request per line",
        )
    ordered = sorted(requests, key=lambda request: request.at_s)
    return Trace(file.name, tuple(ordered), max_input_tokens, speed)


def _parse(line: Line) -> TracedRequest:
    hash_ids = line.fields.get("hash_ids") or []
    if not _are_hashes(hash_ids):
        raise line.refuse(
            f"the hash_ids field must be a list of non-negative integers, but is {hash_ids!r:.80}"
        )
    return TracedRequest(
        at_s=line.number("timestamp", least=0) / 1000,
        num_input_tokens=line.count("input_length"),
        num_output_tokens=line.count("output_length"),
        hash_ids=tuple(hash_ids),
    )


def _are_hashes(value: Any) -> bool:
    return isinstance(value, Sequence) and all(
        isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in value
    )
