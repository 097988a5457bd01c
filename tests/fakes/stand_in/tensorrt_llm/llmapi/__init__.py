"""The LLM API: an executor in a thread, results that grow in place."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Commands in the prompt's first token.
FAIL_THE_REQUEST = 991
FAIL_THE_EXECUTOR = 992
NEVER_ANSWER = 993
BE_CANCELLED = 994

# All clients in the order of their creation.
CLIENTS: list[LLM] = []
_KNOWN = frozenset(
    (
        "model", "tokenizer", "skip_tokenizer_init", "enable_iter_perf_stats", "max_batch_size",
        "max_seq_len", "max_num_tokens", "max_beam_width", "guided_decoding_backend",
        "kv_cache_config", "lora_config", "enable_lora", "speculative_config", "sampler_type",
        "tensor_parallel_size", "pipeline_parallel_size", "enable_chunked_prefill", "backend",
        "peft_cache_config", "cuda_graph_config",
    )
)  # fmt: skip
_STEP_S = 0.002


class RequestError(RuntimeError):
    pass


class ValidationError(ValueError):
    """A fake of Pydantic's error."""

    def __init__(self, names: list[str]) -> None:
        super().__init__("1 validation error\n    For further information visit https://…")
        self._names = names

    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": (name,), "msg": "Extra inputs are not permitted"} for name in self._names]


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(slots=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not Path(self.lora_path).exists():
            raise ValueError(f"lora_path ({self.lora_path}) does not exist.")


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: list[str] | None = None
    bad_token_ids: list[int] | None = None
    _bad_word_ids: list[list[int]] | None = field(default=None, init=False, repr=False)
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    logprobs: int | None = None
    return_perf_metrics: bool = False
    guided_decoding: GuidedDecodingParams | None = None
    detokenize: bool = True

    def __post_init__(self) -> None:
        self.best_of = self.best_of or self.n
        if self.best_of < self.n:
            raise ValueError(f"best_of ({self.best_of}) cannot be less than n ({self.n})")
        is_greedy = not self.use_beam_search and self.top_k in (None, 1) and not self.top_p
        if self.best_of > 1 and is_greedy and not os.environ.get("TLLM_ALLOW_N_GREEDY_DECODING"):
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns.")

    def banned(self) -> list[list[int]]:
        words = [[token] for token in self.bad_token_ids or ()]
        return words if self.bad is None else words + (self._bad_word_ids or [])


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
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    request_perf_metrics: Any = None


class RequestOutput:
    def __init__(self, prompt_token_ids: list[int], params: SamplingParams) -> None:
        # Requires a running event loop, like the original.
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = params
        self.outputs = [CompletionOutput(index) for index in range(params.best_of)]
        self.finished = False
        self.is_aborted = False

    def put(self, response: Any) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, response)

    def abort(self) -> None:
        self.is_aborted = True

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        response = await self._queue.get()
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
            output.logprobs = [{token: Logprob(-0.5, 1)} for token in output.token_ids]
        if params.return_perf_metrics:
            output.request_perf_metrics = _perf_metrics()
        if reason == "cancelled":
            output.finish_reason = reason
        if is_final:
            # Only the last response contains the finish reason.
            self.finished = True
            output.finish_reason = reason


class LLM:
    """The LLM; `arguments` and `requests` record its input."""

    def __init__(self, model: str, **arguments: Any) -> None:
        if unknown := sorted(set(arguments) - _KNOWN):
            raise ValidationError(unknown)
        self.arguments = {"model": model, **arguments}
        self.requests: list[SimpleNamespace] = []
        self._threads: list[threading.Thread] = []
        self.is_shut_down = False
        CLIENTS.append(self)

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        streaming: bool = False,
    ) -> RequestOutput:
        assert sampling_params is not None
        if sampling_params.end_id is None and self.arguments.get("skip_tokenizer_init"):
            raise ValueError("tokenizer is required to reset end_id")
        result = RequestOutput(inputs, sampling_params)
        self.requests.append(
            SimpleNamespace(
                inputs=inputs, params=sampling_params, lora=lora_request, streaming=streaming,
                result=result,
            )
        )  # fmt: skip
        thread = threading.Thread(target=_execute, args=(result, streaming), daemon=True)
        self._threads.append(thread)
        thread.start()
        return result

    def get_stats_async(self, timeout: float | None = 2) -> AsyncIterator[dict[str, Any]]:
        return _stats()

    def shutdown(self) -> None:
        for each in self.requests:
            each.result.abort()
        for thread in self._threads:
            thread.join()
        self.is_shut_down = True


async def _stats() -> AsyncIterator[dict[str, Any]]:
    yield {
        "iter": 7,
        "cpuMemUsage": 1 << 20,
        "gpuMemUsage": 1 << 30,
        "pinnedMemUsage": 1 << 10,
        "numActiveRequests": 1,
        "numQueuedRequests": 3,
        "kvCacheStats": {
            "maxNumBlocks": 100,
            "usedNumBlocks": 6,
            "tokensPerBlock": 32,
            "reusedBlocks": 4,
            "missedBlocks": 12,
        },
        "inflightBatchingStats": {
            "numScheduledRequests": 1,
            "numContextRequests": 0,
            "numCtxTokens": 0,
            "numPausedRequests": 0,
            "microBatchId": 1,
        },
    }


def _execute(result: RequestOutput, streaming: bool) -> None:
    command = result.prompt_token_ids[0]
    if command == FAIL_THE_REQUEST:
        return result.put(RequestError("the request does not fit"))
    if command == FAIL_THE_EXECUTOR:
        return result.put(RuntimeError("the executor is gone"))
    if command == NEVER_ANSWER:
        return None
    if command == BE_CANCELLED:
        return result.put([(0, [], "cancelled", True)])
    sequences = [
        _count(result, result.prompt_token_ids[-1] + 100 * index)
        for index in range(len(result.outputs))
    ]
    if not streaming:
        last = len(sequences) - 1
        whole = [
            (index, tokens, reason, index == last)
            for index, (tokens, reason) in enumerate(sequences)
        ]
        return result.put(whole)
    longest = max(len(tokens) for tokens, _ in sequences)
    for step in range(longest):
        if result.is_aborted:
            return None
        time.sleep(_STEP_S)
        response = []
        for index, (tokens, reason) in enumerate(sequences):
            if step < len(tokens):
                is_end = step == len(tokens) - 1
                is_final = step == longest - 1 and index == len(sequences) - 1
                response.append(
                    (index, tokens[step : step + 1], reason if is_end else None, is_final)
                )
        result.put(response)
    return None


def _count(result: RequestOutput, last: int) -> tuple[list[int], str]:
    params = result.sampling_params
    tokens: list[int] = []
    while len(tokens) < params.max_tokens:
        last += 1
        while any([*tokens, last][-len(word) :] == word for word in params.banned()):
            last += 1
        tokens.append(last)
        if last == params.end_id or last in (params.stop_token_ids or ()):
            return tokens, "stop"
    return tokens, "length"


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
