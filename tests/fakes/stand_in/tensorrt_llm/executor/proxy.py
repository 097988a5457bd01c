"""An executor that generates a token for each request in each step.

As in `GenerationExecutorProxy` (tensorrt_llm/executor/proxy.py, 1.0 to 1.3), one thread delivers
the responses of a step: it puts each response into the queue of its request, and then wakes all
readers. If that fails because the event loop is not running, it only logs a warning. The statistics
are delivered in the same way, and their result exists only after the first request.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from typing import Any

from tensorrt_llm.executor.request import responses_of
from tensorrt_llm.executor.result import IterationResult, RequestOutput
from tensorrt_llm.llmapi.utils import AsyncQueue, _SyncQueue

_LOG = logging.getLogger(__name__)
_STEP_S = 0.002
# At most this many requests are in a batch.
_NUM_SLOTS = 64
_STATISTICS: dict[str, Any] = {
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


class Executor:
    """The executor. `num_steps` counts its steps, including those without requests."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._arrived: queue.SimpleQueue[tuple[RequestOutput, list[Any]]] = queue.SimpleQueue()
        self._iterations: IterationResult | None = None
        self._is_shut_down = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, result: RequestOutput, *, streaming: bool) -> None:
        # Later statistics belong to the new request.
        if self._iterations is None:
            self._iterations = IterationResult()
        elif hasattr(self._iterations, "mark_undone"):
            self._iterations.mark_undone()
        responses = responses_of(
            result.prompt_token_ids, result.sampling_params, streaming=streaming
        )
        self._arrived.put((result, responses))

    def aget_stats(self, timeout: float | None) -> IterationResult:
        assert self._iterations is not None, "IterationResult is not properly instantiated."
        self._iterations.set_timeout(timeout)
        return self._iterations

    def shutdown(self) -> None:
        self._is_shut_down.set()
        self._thread.join()

    def _run(self) -> None:
        waiting: list[tuple[RequestOutput, list[Any]]] = []
        running: list[tuple[RequestOutput, list[Any]]] = []
        number = 0
        while not self._is_shut_down.wait(_STEP_S):
            while not self._arrived.empty():
                waiting.append(self._arrived.get())
            num_free = _NUM_SLOTS - len(running)
            running, waiting = running + waiting[:num_free], waiting[num_free:]
            running, responses = _step(running)
            if running or responses:
                number += 1
                self._deliver(responses, number)
            self.num_steps += 1

    def _deliver(self, responses: list[tuple[RequestOutput, Any]], number: int) -> None:
        queues = []
        for result, response in responses:
            result.queue.put_nowait(response)
            queues.append(result.queue)
        assert self._iterations is not None
        self._iterations.queue.put_nowait(json.dumps({"iter": number, **_STATISTICS}))
        for woken in (queues, [self._iterations.queue]):
            try:
                if woken:
                    _SyncQueue.notify_many(woken[0].loop, woken)
            except AsyncQueue.EventLoopShutdownError:
                _LOG.warning("the event loop is not running")


def _step(
    running: list[tuple[RequestOutput, list[Any]]],
) -> tuple[list[tuple[RequestOutput, list[Any]]], list[tuple[RequestOutput, Any]]]:
    """Return the requests that continue, and the responses of this step."""
    active = [each for each in running if not each[0].is_aborted]
    responses = [(result, left.pop(0)) for result, left in active if left]
    # A request whose response is None never ends.
    silent = {id(result) for result, response in responses if response is None}
    continuing = [(result, left or [None]) for result, left in active
                  if left or id(result) in silent]  # fmt: skip
    return continuing, [each for each in responses if each[1] is not None]
