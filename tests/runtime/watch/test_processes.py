"""The states of processes in `/proc`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.waiting import wait_until
from trtllm_serve_cli.runtime.watch.processes import is_stopped, list_descendants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="requires /proc")


def test_stopped_process_is_distinguished() -> None:
    with subprocess.Popen(("sleep", "600")) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
        process.kill()
    assert not is_stopped(process.pid)


def test_descendants_include_those_of_children() -> None:
    with subprocess.Popen(
        ("sh", "-c", "sleep 600 & echo $!; wait"), stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        sleep = int(shell.stdout.readline())
        assert list_descendants(shell.pid) == [sleep]
        assert {shell.pid, sleep} <= {*list_descendants(os.getpid())}
        os.kill(sleep, signal.SIGKILL)
