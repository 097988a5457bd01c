"""Run an asyncio event loop in a separate thread.

The loop must always be running, because TensorRT-LLM delivers the responses to a request only while
the event loop in which the request was created is running. Otherwise, `_SyncQueue.notify_many`
raises an error and the response stays in its queue (tensorrt_llm/llmapi/utils.py in
NVIDIA/TensorRT-LLM, 1.0 to 1.3).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class EventLoopThread:
    """An asyncio event loop that runs until `close` is called.

    Call `cancel_tasks` and `close` only from other threads, because they wait for the loop. `call`
    can be called from any thread.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule a function call in the loop's thread, without waiting for it.

        Calls run in the order in which they were scheduled.
        """
        self.loop.call_soon_threadsafe(function, *arguments)

    def cancel_tasks(self) -> None:
        """Cancel all tasks in the loop and wait until they have ended."""
        self._run(_cancel_tasks())

    def close(self) -> None:
        """Cancel all tasks and stop the loop and its thread."""
        self.cancel_tasks()
        self._run(self.loop.shutdown_asyncgens())
        self.call(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result()


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
