"""Deliver engine updates to requests from a small thread pool.

In Triton's Python backend, sending a response blocks until the server has received it. Two threads
therefore send the updates of a step, each for different requests. A single thread could not keep up
with 128 streams that receive each token in a separate response. More threads use more CPU time: for
256 streams, four instances of a text model used 3.1 cores with four threads per instance, but only
2.6 cores with two threads per instance (benchmarks/streams.py, Triton 2.51, 16 cores).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..engine import SequenceUpdate

NUM_THREADS = 2


class ResponseThreads:
    """A thread pool that handles the updates of different requests concurrently.

    The updates of one request are handled in order.
    """

    def __init__(self, handle: Callable[[SequenceUpdate], None]) -> None:
        self._handle = handle
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="respond")

    def deliver(self, updates: Iterable[SequenceUpdate]) -> None:
        """Call `handle` with each update and wait until all calls have returned.

        `handle` must not raise an exception.
        """
        by_request: dict[int, list[SequenceUpdate]] = {}
        for update in updates:
            by_request.setdefault(update.request_id, []).append(update)
        requests = list(by_request.values())
        if len(requests) == 1:
            self._handle_requests(requests)
            return
        shares = (requests[first::NUM_THREADS] for first in range(NUM_THREADS))
        for _ in self._threads.map(self._handle_requests, filter(None, shares)):
            pass

    def close(self) -> None:
        """Stop the threads without waiting for running calls."""
        self._threads.shutdown(wait=False)

    def _handle_requests(self, requests: Sequence[Sequence[SequenceUpdate]]) -> None:
        for updates in requests:
            for update in updates:
                self._handle(update)
