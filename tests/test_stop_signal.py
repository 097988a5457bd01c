"""Stop requests from signal handlers of the waiting thread."""

from __future__ import annotations

import subprocess
import sys
import threading

from trtllm_serve_cli.stop_signal import StopSignal

# Each wait is interrupted half a microsecond later than the previous one. With `threading.Event`,
# one of the first few hundred waits deadlocks.
WAITS = """
import signal
from trtllm_serve_cli.stop_signal import StopSignal

signal.signal(signal.SIGALRM, lambda *_: stop.set())
for number in range(2000):
    stop = StopSignal()
    signal.setitimer(signal.ITIMER_REAL, (number % 200 + 1) * 5e-7)
    # A signal just before the system call is handled after it.
    assert stop.wait(0.05)
"""


def test_wait_returns_on_timeout_or_when_set() -> None:
    stop = StopSignal()
    assert (stop.wait(0.01), stop.is_set()) == (False, False)
    threading.Timer(0.01, stop.set).start()
    assert (stop.wait(60), stop.wait(60), stop.is_set()) == (True, True, True)


def test_handler_may_set_it_at_any_time_of_a_wait() -> None:
    subprocess.run((sys.executable, "-c", WAITS), check=True, timeout=60)
