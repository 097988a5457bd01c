"""Who has gone is noticed, and nobody else is troubled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from trtllm_serve_cli.runtime.requests.cancel_watch import CancelWatch, Watched

_TIMEOUT_S = 60.0


class Sender:
    """Tells the test each time that it is asked."""

    def __init__(self, *, has_gone: bool, answer: threading.Event | None = None) -> None:
        self._has_gone = has_gone
        self._answer = answer
        self.asked: queue.Queue[None] = queue.Queue()

    def is_cancelled(self) -> bool:
        self.asked.put(None)
        if self._answer is not None:
            self._answer.wait(_TIMEOUT_S)
        return self._has_gone

    def wait_until_asked(self, times: int = 1) -> None:
        for _ in range(times):
            self.asked.get(timeout=_TIMEOUT_S)


@pytest.fixture
def watch() -> Iterator[CancelWatch]:
    started = CancelWatch(period_s=0.001)
    yield started
    started.close()


def test_a_caller_who_has_gone_is_noticed_until_removed(watch: CancelWatch) -> None:
    """The first call may find nothing to stop yet."""
    calls: queue.Queue[str] = queue.Queue()
    staying = Sender(has_gone=False)
    gone = watch.add(Sender(has_gone=True), lambda: calls.put("gone"))
    watch.add(staying, lambda: calls.put("staying"))
    told = [calls.get(timeout=_TIMEOUT_S) for _ in range(2)]
    watch.remove(gone)
    staying.wait_until_asked(times=3)
    told += [calls.get() for _ in range(calls.qsize())]
    staying.wait_until_asked(times=3)
    assert (set(told), calls.empty()) == ({"gone"}, True)


def test_who_is_removed_is_asked_no_more(watch: CancelWatch) -> None:
    removed, other = Sender(has_gone=False), Sender(has_gone=False)
    watched = watch.add(removed, lambda: None)
    removed.wait_until_asked()
    watch.remove(watched)
    num_asked = removed.asked.qsize()
    watch.add(other, lambda: None)
    other.wait_until_asked(times=3)
    assert removed.asked.qsize() == num_asked


def test_removing_waits_for_an_answer_that_is_on_its_way(watch: CancelWatch) -> None:
    """Triton looks at freed memory when it is asked about a request that has ended."""
    answer = threading.Event()
    sender = Sender(has_gone=False, answer=answer)
    watched = watch.add(sender, lambda: None)
    sender.wait_until_asked()
    removing = threading.Thread(target=watch.remove, args=(watched,))
    removing.start()
    removing.join(0.05)
    was_waiting = removing.is_alive()
    answer.set()
    removing.join(_TIMEOUT_S)
    assert (was_waiting, removing.is_alive()) == (True, False)


def test_removing_twice_leaves_the_others_watched(watch: CancelWatch) -> None:
    other = Sender(has_gone=False)
    removed = watch.add(Sender(has_gone=False), lambda: None)
    watch.add(other, lambda: None)
    watch.remove(removed)
    watch.remove(removed)
    other.wait_until_asked(times=2)


def test_a_request_may_be_removed_while_it_is_told(watch: CancelWatch) -> None:
    told = threading.Event()
    added: queue.Queue[Watched] = queue.Queue()

    def on_cancel() -> None:
        watch.remove(added.get(timeout=_TIMEOUT_S))
        told.set()

    added.put(watch.add(Sender(has_gone=True), on_cancel))
    assert told.wait(_TIMEOUT_S)


def test_a_request_that_cannot_be_stopped_ends_no_other_watch(
    watch: CancelWatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise RuntimeError("the sender is closed")

    other = Sender(has_gone=False)
    watch.add(Sender(has_gone=True), refuse)
    watch.add(other, lambda: None)
    other.wait_until_asked(times=2)
    assert capfd.readouterr().err.count("RuntimeError: the sender is closed") == 1


@pytest.mark.parametrize("has_work", [True, False])
def test_close_ends_the_thread_at_once(has_work: bool) -> None:
    before = set(threading.enumerate())
    watch = CancelWatch(period_s=3600.0)
    (thread,) = set(threading.enumerate()) - before
    if has_work:
        watch.add(Sender(has_gone=False), lambda: None)
    watch.close()
    thread.join(_TIMEOUT_S)
    assert not thread.is_alive()


def test_close_returns_when_the_last_request_goes_just_then(watch: CancelWatch) -> None:
    added: queue.Queue[Watched] = queue.Queue()
    was_removed = threading.Event()

    def on_cancel() -> None:
        closing.start()
        # It waits for this thread, and has begun to by then.
        closing.join(0.05)
        watch.remove(added.get(timeout=_TIMEOUT_S))
        was_removed.set()

    closing = threading.Thread(target=watch.close, daemon=True)
    added.put(watch.add(Sender(has_gone=True), on_cancel))
    assert was_removed.wait(_TIMEOUT_S)
    closing.join(_TIMEOUT_S)
    assert not closing.is_alive()
