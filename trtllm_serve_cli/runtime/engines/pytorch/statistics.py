"""Read TensorRT-LLM's iteration statistics.

The LLM API returns the statistics as JSON objects. The keys are from `IterationStats` in
NVIDIA/TensorRT-LLM (1.0 to 1.3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...engine import EngineStats
from ...log import write_traceback

# The interval between queries, in seconds. It is long because a query blocks the event loop in some
# versions of TensorRT-LLM.
PERIOD_S = 0.5
# The maximum time that a query waits for the next iteration, in seconds.
TIMEOUT_S = 0.01


class IterationStatistics:
    """The latest iteration statistics and the total number of preemptions."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._latest: dict[str, Any] = {}
        # TensorRT-LLM reports paused requests only per iteration, so count the total here.
        self._num_preemptions = 0
        self._has_failed = False
        self._task: asyncio.Task[None] | None = None

    def follow(self, has_requests: Callable[[], bool]) -> None:
        """Start reading statistics and continue while `has_requests` returns true.

        Do nothing if statistics are already being read, or if reading them has failed. Call this
        method in a running event loop after a request has been submitted, because TensorRT-LLM
        rejects statistics queries before the first request.
        """
        is_reading = self._task is not None and not self._task.done()
        if not is_reading and not self._has_failed:
            self._task = asyncio.get_running_loop().create_task(self._read_while(has_requests))

    async def _read_while(self, has_requests: Callable[[], bool]) -> None:
        try:
            while has_requests():
                await self._read()
                await asyncio.sleep(PERIOD_S)
        except Exception:  # generation works without statistics, so stop reading them
            write_traceback()
            self._has_failed = True

    async def _read(self) -> None:
        iterations = self._llm.get_stats_async(TIMEOUT_S)
        # Until about 1.2.0rc5, the result returns nothing after its first timeout unless it is
        # reset (see `IterationResult` in tensorrt_llm/executor/result.py).
        if hasattr(iterations, "mark_undone"):
            iterations.mark_undone()
        async for iteration in iterations:
            self._latest = iteration
            batch = iteration.get("inflightBatchingStats") or {}
            self._num_preemptions += batch.get("numPausedRequests", 0)

    def engine_stats(self, num_requests: int) -> EngineStats:
        """Return the statistics of an engine with `num_requests` requests."""
        # Read the attribute once, because the event loop replaces it from another thread.
        latest = self._latest
        cache = latest.get("kvCacheStats") or {}
        # If no request is running, the statistics of the latest iteration are stale.
        current = latest if num_requests else {}
        batch = current.get("inflightBatchingStats") or {}
        return EngineStats(
            active_requests=num_requests,
            scheduled_requests=min(batch.get("numScheduledRequests", 0), num_requests),
            context_requests=batch.get("numContextRequests", 0),
            waiting_requests=current.get("numQueuedRequests", 0),
            kv_blocks_max=cache.get("maxNumBlocks", 0),
            kv_blocks_used=cache.get("usedNumBlocks", 0) if num_requests else 0,
            tokens_per_block=cache.get("tokensPerBlock", 0),
            iteration=latest.get("iter", 0),
            context_tokens=batch.get("numCtxTokens", 0),
            memory_bytes=latest.get("cpuMemUsage", 0),
            gpu_memory_bytes=latest.get("gpuMemUsage", 0),
            pinned_memory_bytes=latest.get("pinnedMemUsage", 0),
            micro_batch_id=batch.get("microBatchId", 0),
            paused_requests=batch.get("numPausedRequests", 0),
            preemptions=self._num_preemptions,
            kv_blocks_reused=cache.get("reusedBlocks", 0),
            kv_blocks_missed=cache.get("missedBlocks", 0),
        )
