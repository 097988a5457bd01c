"""End a run early on Ctrl-C and keep its measurements."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Interruption:
    """The state of a block that SIGINT can interrupt.

    `has_occurred` is true if SIGINT has arrived. `actions` contains the functions that the signal
    handler calls.
    """

    has_occurred: bool = False
    actions: list[Callable[[], object]] = field(default_factory=list)


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Call the actions of the yielded `Interruption` on the first SIGINT.

    A second SIGINT calls the previously installed handler.
    """
    interruption = Interruption()

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        interruption.has_occurred = True
        for act in interruption.actions:
            act()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in this thread and in the processes that the thread spawns.

    Ctrl-C sends SIGINT to all processes of the terminal's foreground process group. Without
    blocking, a process that is still starting would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    # Start the resource tracker now. Otherwise, multiprocessing would start the tracker with the
    # first worker and unblock SIGINT afterwards.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
