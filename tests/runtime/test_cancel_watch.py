"""Who has gone is noticed, and nobody else is troubled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from trtllm_serve_cli.runtime.cancel_watch import CancelWatch

_TIMEOUT_S = 10.0


class Sender:
    """Tells the test each time that it is asked."""

    def __init__(self, *, has_gone: bool) -> None:
        self._has_gone = has_gone
        self.asked: queue.Queue[None] = queue.Queue()

    def is_cancelled(self) -> bool:
        self.asked.put(None)
        return self._has_gone

    def wait_until_asked(self, times: int = 1) -> None:
        for _ in range(times):
            self.asked.get(timeout=_TIMEOUT_S)


@pytest.fixture
def watch() -> Iterator[CancelWatch]:
    started = CancelWatch(period_s=0.001)
    yield started
    started.close()


def test_a_caller_who_has_gone_is_noticed_once(watch: CancelWatch) -> None:
    calls: queue.Queue[str] = queue.Queue()
    staying = Sender(has_gone=False)
    watch.add(Sender(has_gone=True), lambda: calls.put("gone"))
    watch.add(staying, lambda: calls.put("staying"))
    first = calls.get(timeout=_TIMEOUT_S)
    staying.wait_until_asked(times=3)
    assert (first, calls.empty()) == ("gone", True)


def test_who_is_removed_is_asked_no_more(watch: CancelWatch) -> None:
    removed, other = Sender(has_gone=False), Sender(has_gone=False)
    key = watch.add(removed, lambda: None)
    removed.wait_until_asked()
    watch.remove(key)
    watch.add(other, lambda: None)
    other.wait_until_asked()
    num_asked = removed.asked.qsize()
    other.wait_until_asked(times=3)
    assert removed.asked.qsize() == num_asked


def test_whoever_is_being_asked_is_removed_only_afterwards(watch: CancelWatch) -> None:
    being_asked, may_answer, removed = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def is_cancelled(self) -> bool:
            being_asked.set()
            return not may_answer.wait(_TIMEOUT_S)

    key = watch.add(Slow(), lambda: None)
    assert being_asked.wait(_TIMEOUT_S)
    remover = threading.Thread(target=lambda: (watch.remove(key), removed.set()))
    remover.start()
    assert not removed.wait(0.05)
    may_answer.set()
    assert removed.wait(_TIMEOUT_S)
    remover.join()


def test_removing_what_is_not_watched_is_ignored(watch: CancelWatch) -> None:
    sender = Sender(has_gone=False)
    watch.add(sender, lambda: None)
    watch.remove(-1)
    sender.wait_until_asked(times=2)


def test_a_request_may_be_removed_while_it_is_told(watch: CancelWatch) -> None:
    told = threading.Event()
    sender = Sender(has_gone=True)

    def on_cancel() -> None:
        watch.remove(id(sender))
        told.set()

    watch.add(sender, on_cancel)
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
