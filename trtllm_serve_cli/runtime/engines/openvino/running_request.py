"""Record the progress of a request in OpenVINO GenAI's pipeline."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from ...engine import GenerationRequest
from ...triton.word_lists import find_word_end
from .grammar_check import CheckedGuide


@dataclass(slots=True)
class NewTokens:
    """The new tokens of a sequence since the last read.

    `output` is the pipeline's last output for the sequence.
    """

    output: Any
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


@dataclass(slots=True)
class RunningRequest:
    """A request in the pipeline.

    - `handle` is the request's pipeline handle.
    - `num_reused_blocks` is the estimated number of KV cache blocks reused from earlier prompts.
    - `guide` is the result of checking the request's guide, or None if the request has neither a
      guide nor bad words.
    - `cum_log_prob` maps the index of each sequence to its cumulative log probability.
    - `tokens` maps the index of each sequence to its tokens. It is empty if the request has no stop
      words or uses beam search.
    - `num_tokens` is the number of generated tokens in all sequences.
    - `num_steps` is the number of steps that returned new tokens.
    - `is_paused` is true while the request is preempted.
    - The `_ns` fields contain monotonic times, or 0 if the event has not occurred.
    """

    request: GenerationRequest
    handle: Any
    num_reused_blocks: int
    guide: CheckedGuide | None = None
    cum_log_prob: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    num_tokens: int = 0
    num_steps: int = 0
    is_paused: bool = False
    first_scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0

    def read(self) -> dict[int, NewTokens]:
        """Return the new tokens of each sequence since the last call.

        The keys are the pipeline's sequence ids. Sequences without new output are omitted.
        """
        new: dict[int, NewTokens] = {}
        while self.handle.can_read():
            for sequence, output in self.handle.read().items():
                tokens = new.setdefault(sequence, NewTokens(output))
                tokens.output = output
                tokens.ids += output.generated_ids
                tokens.log_probs += output.generated_log_probs
        return new

    def record_tokens(self, num_tokens: int) -> None:
        now_ns = time.monotonic_ns()
        self.first_token_ns = self.first_token_ns or now_ns
        self.last_token_ns = now_ns
        self.num_tokens += num_tokens
        self.num_steps += 1

    def find_stop(self, index: int, ids: list[int]) -> int | None:
        """Return the position in the new tokens `ids` where the first stop word ends.

        Return None if no stop word ends in these tokens, or if the request uses beam search.
        """
        if not self.request.stop_words or self.request.beam_width > 1:
            return None
        collected = self.tokens.setdefault(index, [])
        start = len(collected)
        collected += ids
        end = find_word_end(collected, start, self.request.stop_words)
        return None if end is None else end - start


def find_guided(requests: Iterable[RunningRequest]) -> list[tuple[RunningRequest, CheckedGuide]]:
    return [(each, each.guide) for each in requests if each.guide is not None]


def find_slowest_guide(requests: Iterable[RunningRequest]) -> RunningRequest | None:
    """Return the request whose guide is most likely slowing down the engine.

    This is the request whose guide has the largest `sampling_s`, rounded to 0.1 s. If several
    guides have the same value, return the request with the most generated tokens. Return None if no
    request has a guide.
    """
    ranks = [
        (round(guide.sampling_s, 1), each.num_tokens, each) for each, guide in find_guided(requests)
    ]
    return max(ranks, key=itemgetter(0, 1))[2] if ranks else None
