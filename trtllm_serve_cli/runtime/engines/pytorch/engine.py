"""Implement an engine with TensorRT-LLM's LLM API and its PyTorch backend.

This module requires the package `tensorrt_llm`, version 1.0 to 1.3. TensorRT-LLM batches requests
in separate processes. The engine runs its event loop only in `step`, which returns all results that
have arrived since the previous step.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorrt_llm.llmapi import (
    LLM,
    GuidedDecodingParams,
    LoRARequest,
    RequestError,
    SamplingParams,
)
from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict

from ...engine import (
    EngineLimits,
    EngineStats,
    GenerationRequest,
    InvalidRequest,
    SequenceUpdate,
    last_line,
)
from ...guide import guide_arguments
from ...log import write_traceback
from ...lora.adapter_folders import AdapterReader
from ...lora.adapter_request import check_no_adapter, key_of
from ..engine_arguments import Arguments, explaining_rejections
from .results import ResultReader
from .sampling import check_servable, long_bad_words, sampling_arguments

# The maximum time that a step waits for tokens. The limit is short because new requests are
# submitted only between steps.
_STEP_WAIT_S = 0.01
# The interval between statistics queries. It is long because a query blocks the event loop in some
# versions of TensorRT-LLM.
_STATS_PERIOD_S = 0.5
_STATS_TIMEOUT_S = 0.01


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    task: asyncio.Task[None]
    result: Any = None


class PyTorchEngine:
    """A GPU engine that uses TensorRT-LLM's `LLM` for in-flight batching.

    `config` contains llm (the arguments for `LLM`), max_seq_len and vocab_size. It may also contain
    any field of `LoraOptions`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._arguments: Arguments = config["llm"]
        self._adapters = (
            AdapterReader(Path(self._arguments["model"]), config)
            if "lora_config" in self._arguments
            else None
        )
        # Accept greedy requests for several sequences, as NVIDIA's backend does. By default, the
        # LLM API rejects such requests.
        os.environ.setdefault("TLLM_ALLOW_N_GREEDY_DECODING", "1")
        self._llm = _load(self._arguments)
        self._loop = asyncio.new_event_loop()
        self._running: dict[int, _Running] = {}
        self._updates: list[SequenceUpdate] = []
        self._has_updates = asyncio.Event()
        self._failure: Exception | None = None
        # The statistics of the executor's latest iteration, in the executor's format.
        self._iteration: dict[str, Any] = {}
        # The total number of paused requests, which is counted here because the executor reports
        # only the number per iteration.
        self._num_preemptions = 0
        self._stats_due_s = 0.0
        self._stats_task: asyncio.Task[None] | None = None
        self.limits = EngineLimits(
            max_seq_len=int(config["max_seq_len"]),
            max_beam_width=int(self._arguments.get("max_beam_width") or 1),
            vocab_size=int(config["vocab_size"]),
        )

    def submit(self, request: GenerationRequest) -> None:
        check_servable(request, self._arguments)
        if self._adapters is None:
            check_no_adapter(request, "the modules that adapters may change (lora_target_modules)")
        params = _sampling_params(request)
        self._running[request.id] = _Running(
            request, self._loop.create_task(self._run(request, params))
        )

    def cancel(self, request_id: int) -> None:
        running = self._running.pop(request_id, None)
        if running is not None:
            running.task.cancel()
            _abort(running)
            self._updates = [each for each in self._updates if each.request_id != request_id]

    def has_work(self) -> bool:
        return bool(self._running or self._updates)

    def step(self) -> list[SequenceUpdate]:
        self._loop.run_until_complete(self._wait())
        if self._failure is not None:
            raise self._failure
        updates, self._updates = self._updates, []
        return updates

    def stats(self) -> EngineStats:
        cache = self._iteration.get("kvCacheStats") or {}
        # Ignore the latest iteration if no request is running, because its statistics are outdated.
        latest = self._iteration if self._running else {}
        batch = latest.get("inflightBatchingStats") or {}
        return EngineStats(
            active_requests=len(self._running),
            scheduled_requests=min(batch.get("numScheduledRequests", 0), len(self._running)),
            context_requests=batch.get("numContextRequests", 0),
            waiting_requests=latest.get("numQueuedRequests", 0),
            kv_blocks_max=cache.get("maxNumBlocks", 0),
            kv_blocks_used=cache.get("usedNumBlocks", 0) if self._running else 0,
            tokens_per_block=cache.get("tokensPerBlock", 0),
            iteration=self._iteration.get("iter", 0),
            context_tokens=batch.get("numCtxTokens", 0),
            memory_bytes=self._iteration.get("cpuMemUsage", 0),
            gpu_memory_bytes=self._iteration.get("gpuMemUsage", 0),
            pinned_memory_bytes=self._iteration.get("pinnedMemUsage", 0),
            micro_batch_id=batch.get("microBatchId", 0),
            paused_requests=batch.get("numPausedRequests", 0),
            preemptions=self._num_preemptions,
            kv_blocks_reused=cache.get("reusedBlocks", 0),
            kv_blocks_missed=cache.get("missedBlocks", 0),
        )

    def close(self) -> None:
        self._llm.shutdown()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        # Run the loop once so that the cancelled tasks end.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
        if self._adapters is not None:
            self._adapters.close()

    async def _wait(self) -> None:
        """Wait for updates or a failure, for at most `_STEP_WAIT_S`."""
        self._poll_stats()
        if self._updates or self._failure is not None:
            return
        self._has_updates.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._has_updates.wait(), _STEP_WAIT_S)

    async def _run(self, request: GenerationRequest, params: Any) -> None:
        try:
            await self._follow(request, params)
        except (InvalidRequest, RequestError, ValueError) as error:
            rejected = isinstance(error, InvalidRequest)
            self._add_updates(
                [SequenceUpdate(request.id, error=last_line(error), rejected=rejected)]
            )
        except Exception as error:
            # Any other error means that the executor has failed, so all requests must fail.
            self._failure = error
            self._has_updates.set()
        finally:
            if self._adapters is not None:
                self._adapters.release(request)
        self._running.pop(request.id, None)

    async def _follow(self, request: GenerationRequest, params: Any) -> None:
        lora_request = await self._lora_request(request)
        result = self._llm.generate_async(
            list(request.input_ids),
            params,
            lora_request=lora_request,
            # Beams cannot be streamed, because their tokens may change until the request ends.
            streaming=request.beam_width == 1,
        )
        running = self._running[request.id]
        running.result = result
        reader = ResultReader(request)
        try:
            async for _ in result:
                self._add_updates(reader.read(result))
                if reader.is_done:
                    break
        finally:
            _abort(running)

    async def _lora_request(self, request: GenerationRequest) -> Any:
        if self._adapters is None or key_of(request) is None:
            return None
        adapter = await asyncio.wrap_future(self._adapters.find(request), loop=self._loop)
        return adapter and LoRARequest(adapter.name, adapter.number, str(adapter.folder))

    def _add_updates(self, updates: list[SequenceUpdate]) -> None:
        if updates:
            self._updates += updates
            self._has_updates.set()

    def _poll_stats(self) -> None:
        is_over = self._stats_task is None or self._stats_task.done()
        if is_over and self._loop.time() >= self._stats_due_s:
            self._stats_due_s = self._loop.time() + _STATS_PERIOD_S
            self._stats_task = self._loop.create_task(self._read_stats())

    async def _read_stats(self) -> None:
        try:
            async for iteration in self._llm.get_stats_async(_STATS_TIMEOUT_S):
                self._iteration = iteration
                batch = iteration.get("inflightBatchingStats") or {}
                self._num_preemptions += batch.get("numPausedRequests", 0)
        except Exception:  # generation does not require statistics, so stop reading them
            write_traceback()
            self._stats_due_s = math.inf


def _load(arguments: Arguments) -> Any:
    """Load an `LLM`. Raise a `ValueError` that names the arguments that `LLM` rejects."""
    # Load the tokenizer only for guided decoding, because requests and results contain token ids.
    needs_tokenizer = bool(arguments.get("guided_decoding_backend"))
    defaults: Arguments = {"enable_iter_perf_stats": True}
    if not needs_tokenizer:
        defaults["skip_tokenizer_init"] = True
        arguments = {key: value for key, value in arguments.items() if key != "tokenizer"}
    with explaining_rejections("TensorRT-LLM"):
        # `update_llm_args_with_extra_dict` converts argument groups to their classes.
        return LLM(**update_llm_args_with_extra_dict({}, deepcopy({**defaults, **arguments})))


def _sampling_params(request: GenerationRequest) -> Any:
    arguments = sampling_arguments(request)
    if guide := guide_arguments(request.guide_type, request.guide):
        arguments["guided_decoding"] = GuidedDecodingParams(**guide)
    params = SamplingParams(**arguments)
    if words := long_bad_words(request):
        # Set the token ids directly, so that the API does not convert texts in `bad` to token ids.
        # `bad` must be set, too, because otherwise the API ignores the token ids.
        params.bad = [""] * len(words)
        params._bad_word_ids = words
    return params


def _abort(running: _Running) -> None:
    if running.result is not None and not running.result.finished:
        running.result.abort()
