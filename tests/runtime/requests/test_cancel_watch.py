"""Cancelled requests are detected without affecting others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from trtllm_serve_cli.runtime.requests.cancel_watch import CancelWatch, WatchedRequest

_TIMEOUT_S = 60.0


class Sender:
    """A response sender that counts its checks."""

    def __init__(self, *, is_cancelled: bool, answer: threading.Event | None = None) -> None:
        self._is_cancelled = is_cancelled
        self._answer = answer
        self.checks: queue.Queue[None] = queue.Queue()

    def is_cancelled(self) -> bool:
        self.checks.put(None)
        if self._answer is not None:
            self._answer.wait(_TIMEOUT_S)
        return self._is_cancelled

    def wait_for_checks(self, times: int = 1) -> None:
        for _ in range(times):
            self.checks.get(timeout=_TIMEOUT_S)


@pytest.fixture
def watch() -> Iterator[CancelWatch]:
    started = CancelWatch(period_s=0.001)
    yield started
    started.close()


def test_reports_a_cancelled_request_until_it_is_removed(watch: CancelWatch) -> None:
    """The first call may come before there is a request to stop."""
    calls: queue.Queue[str] = queue.Queue()
    staying = Sender(is_cancelled=False)
    cancelled = watch.add(Sender(is_cancelled=True), lambda: calls.put("gone"))
    watch.add(staying, lambda: calls.put("staying"))
    received = [calls.get(timeout=_TIMEOUT_S) for _ in range(2)]
    watch.remove(cancelled)
    staying.wait_for_checks(times=3)
    received += [calls.get() for _ in range(calls.qsize())]
    staying.wait_for_checks(times=3)
    assert (set(received), calls.empty()) == ({"gone"}, True)


def test_removed_request_is_not_checked(watch: CancelWatch) -> None:
    removed, other = Sender(is_cancelled=False), Sender(is_cancelled=False)
    watched = watch.add(removed, lambda: None)
    removed.wait_for_checks()
    watch.remove(watched)
    num_checks = removed.checks.qsize()
    watch.add(other, lambda: None)
    other.wait_for_checks(times=3)
    assert removed.checks.qsize() == num_checks


def test_remove_waits_for_a_check_in_progress(watch: CancelWatch) -> None:
    """Triton reads freed memory to check a request that has ended."""
    answer = threading.Event()
    sender = Sender(is_cancelled=False, answer=answer)
    watched = watch.add(sender, lambda: None)
    sender.wait_for_checks()
    removing = threading.Thread(target=watch.remove, args=(watched,))
    removing.start()
    removing.join(0.05)
    was_waiting = removing.is_alive()
    answer.set()
    removing.join(_TIMEOUT_S)
    assert (was_waiting, removing.is_alive()) == (True, False)


def test_removing_twice_does_not_affect_other_requests(watch: CancelWatch) -> None:
    other = Sender(is_cancelled=False)
    removed = watch.add(Sender(is_cancelled=False), lambda: None)
    watch.add(other, lambda: None)
    watch.remove(removed)
    watch.remove(removed)
    other.wait_for_checks(times=2)


def test_request_can_be_removed_in_its_callback(watch: CancelWatch) -> None:
    was_called = threading.Event()
    added: queue.Queue[WatchedRequest] = queue.Queue()

    def on_cancel() -> None:
        watch.remove(added.get(timeout=_TIMEOUT_S))
        was_called.set()

    added.put(watch.add(Sender(is_cancelled=True), on_cancel))
    assert was_called.wait(_TIMEOUT_S)


def test_failing_callback_does_not_affect_other_requests(
    watch: CancelWatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("the sender is closed")

    other = Sender(is_cancelled=False)
    watch.add(Sender(is_cancelled=True), fail)
    watch.add(other, lambda: None)
    other.wait_for_checks(times=2)
    assert capfd.readouterr().err.count("RuntimeError: the sender is closed") == 1


@pytest.mark.parametrize("has_work", [True, False])
def test_close_ends_the_thread_immediately(has_work: bool) -> None:
    before = set(threading.enumerate())
    watch = CancelWatch(period_s=3600.0)
    (thread,) = set(threading.enumerate()) - before
    if has_work:
        watch.add(Sender(is_cancelled=False), lambda: None)
    watch.close()
    thread.join(_TIMEOUT_S)
    assert not thread.is_alive()


def test_close_returns_if_the_last_request_is_removed_meanwhile(watch: CancelWatch) -> None:
    added: queue.Queue[WatchedRequest] = queue.Queue()
    was_removed = threading.Event()

    def on_cancel() -> None:
        closing.start()
        # `close` waits for this thread from now on.
        closing.join(0.05)
        watch.remove(added.get(timeout=_TIMEOUT_S))
        was_removed.set()

    closing = threading.Thread(target=watch.close, daemon=True)
    added.put(watch.add(Sender(is_cancelled=True), on_cancel))
    assert was_removed.wait(_TIMEOUT_S)
    closing.join(_TIMEOUT_S)
    assert not closing.is_alive()
