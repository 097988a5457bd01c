"""The queues that carry responses to coroutines.

The rules are those of `AsyncQueue` and `_SyncQueue` (tensorrt_llm/llmapi/utils.py, 1.0 to 1.3): the
thread that delivers responses appends items without waking the reader, and then wakes all readers
with one call into their event loop. If the loop is not running, this call raises an error, and the
items stay in their queues.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Iterable
from typing import Any


class AsyncQueue:
    class EventLoopShutdownError(Exception):
        pass

    def __init__(self) -> None:
        self._items: collections.deque[Any] = collections.deque()
        self._event = asyncio.Event()
        self.sync_q = _SyncQueue(self)

    def put_nowait(self, item: Any) -> None:
        self._items.append(item)

    def notify(self) -> None:
        # The reader may have taken the items meanwhile.
        if self._items:
            self._event.set()

    async def get(self, timeout: float | None = None) -> Any:
        """Return the next item, or raise `asyncio.TimeoutError`."""
        await asyncio.wait_for(self._event.wait(), timeout=timeout)
        item = self._items.popleft()
        if not self._items:
            self._event.clear()
        return item


class _SyncQueue:
    def __init__(self, queue: AsyncQueue) -> None:
        self._queue = queue
        self.loop = asyncio.get_running_loop()

    def put_nowait(self, item: Any) -> None:
        self._queue.put_nowait(item)

    @staticmethod
    def notify_many(loop: asyncio.AbstractEventLoop, queues: Iterable[_SyncQueue]) -> None:
        if not loop.is_running():
            raise AsyncQueue.EventLoopShutdownError
        asyncio.run_coroutine_threadsafe(_notify(frozenset(queues)), loop)


async def _notify(queues: frozenset[_SyncQueue]) -> None:
    for each in queues:
        each._queue.notify()
