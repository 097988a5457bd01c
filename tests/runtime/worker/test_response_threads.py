"""Updates reach their requests completely and in order, also concurrently."""

from __future__ import annotations

import threading
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.worker.response_threads import NUM_THREADS, ResponseThreads

updates_of_some = st.lists(
    st.builds(
        lambda request, sequence, token: SequenceUpdate(request, sequence, (token,)),
        st.integers(1, 5),
        st.integers(0, 2),
        st.integers(0, 9),
    ),
    max_size=40,
)


@given(updates_of_some)
def test_handles_each_request_in_order_by_one_thread_at_a_time(
    updates: list[SequenceUpdate],
) -> None:
    handled: list[SequenceUpdate] = []
    busy: dict[int, threading.Lock] = defaultdict(threading.Lock)

    def handle(update: SequenceUpdate) -> None:
        assert busy[update.request_id].acquire(blocking=False)
        handled.append(update)
        busy[update.request_id].release()

    threads = ResponseThreads(handle)
    threads.deliver(updates)
    threads.close()
    for request_id in {update.request_id for update in updates}:
        mine = [each for each in updates if each.request_id == request_id]
        assert [each for each in handled if each.request_id == request_id] == mine


def test_handles_requests_concurrently() -> None:
    """Each thread waits until all threads have reached the barrier."""
    together = threading.Barrier(NUM_THREADS, timeout=60)
    threads = ResponseThreads(lambda update: together.wait() and None)
    threads.deliver([SequenceUpdate(number, 0, (1,)) for number in range(NUM_THREADS)])
    threads.close()
    assert not together.broken
