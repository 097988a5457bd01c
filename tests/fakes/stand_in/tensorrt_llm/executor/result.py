"""Results that grow in place, and the statistics of iterations.

The rules are those of `GenerationResult` and `IterationResult` (tensorrt_llm/executor/result.py,
1.0 to 1.3).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from packaging.version import Version

from tensorrt_llm import __version__
from tensorrt_llm.llmapi.utils import AsyncQueue

# From this version on, a query for statistics resets the result by itself.
_RESETS_ITSELF = Version(__version__) > Version("1.2.0rc5")


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    request_perf_metrics: Any = None


class RequestOutput:
    """The result of a request. It must be created while an event loop is running."""

    def __init__(self, prompt: list[int], params: Any) -> None:
        self.aqueue = AsyncQueue()
        self.queue = self.aqueue.sync_q
        self.prompt_token_ids = prompt
        self.sampling_params = params
        self.outputs = [CompletionOutput(index) for index in range(params.best_of)]
        self.finished = False
        self.is_aborted = False

    def abort(self) -> None:
        assert asyncio.get_running_loop() is self.queue.loop
        self.is_aborted = True

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        response = await self.aqueue.get()
        if isinstance(response, Exception):
            raise response
        for index, tokens, reason, is_final in response:
            self._take(self.outputs[index], tokens, reason, is_final)
        return self

    def _take(
        self, output: CompletionOutput, tokens: list[int], reason: str | None, is_final: bool
    ) -> None:
        params = self.sampling_params
        if params.use_beam_search:
            output.token_ids = tokens
        else:
            output.token_ids.extend(tokens)
        if params.logprobs:
            output.logprobs = [_entry(each, params.logprobs) for each in output.token_ids]
        if params.prompt_logprobs:
            output.prompt_logprobs = [
                _entry(each, params.prompt_logprobs) for each in self.prompt_token_ids[1:]
            ]
        if params.return_perf_metrics:
            output.request_perf_metrics = _perf_metrics()
        if is_final:
            # Only the last response contains the finish reason.
            self.finished = True
            output.finish_reason = reason


class IterationResult:
    """The statistics of iterations, as an iterator that ends when none arrives in time.

    Up to 1.2.0rc5, the iterator ends for good at its first timeout, until `mark_undone`.
    """

    def __init__(self) -> None:
        self.aqueue = AsyncQueue()
        self.queue = self.aqueue.sync_q
        self._is_done = False
        self._timeout: float | None = None

    if not _RESETS_ITSELF:

        def mark_undone(self) -> None:
            self._is_done = False

    def set_timeout(self, timeout: float | None) -> None:
        self._timeout = timeout
        if _RESETS_ITSELF:
            self._is_done = False

    def __aiter__(self) -> IterationResult:
        return self

    async def __anext__(self) -> dict[str, Any]:
        if self._is_done:
            raise StopAsyncIteration
        try:
            iteration: dict[str, Any] = json.loads(await self.aqueue.get(self._timeout))
        except asyncio.TimeoutError:
            self._is_done = True
            raise StopAsyncIteration from None
        return iteration


def _entry(token: int, count: int) -> dict[int, Logprob]:
    """Return the log probabilities of a token and of less likely tokens from 900 on."""
    others = {900 + each: Logprob(-1.0 - each, 2 + each) for each in range(count - 1)}
    return {**others, token: Logprob(-0.5, 1)}


def _perf_metrics() -> SimpleNamespace:
    return SimpleNamespace(
        timing_metrics=SimpleNamespace(
            arrival_time=timedelta(seconds=1),
            first_scheduled_time=timedelta(seconds=2),
            first_token_time=timedelta(seconds=3),
            last_token_time=timedelta(seconds=4),
        ),
        kv_cache_metrics=SimpleNamespace(
            num_total_allocated_blocks=4, num_new_allocated_blocks=3, num_reused_blocks=1
        ),
        speculative_decoding=SimpleNamespace(
            acceptance_rate=0.5, total_accepted_draft_tokens=2, total_draft_tokens=4
        ),
    )
