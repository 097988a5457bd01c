"""Processes that write heartbeats, like those of a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until
from trtllm_serve_cli import runtime
from trtllm_serve_cli.runtime.pulse import PULSES_VARIABLE

_COUNT = """
import sys, time
from trtllm_serve_cli.runtime.pulse import PulseFile, PulseWriter, register_stacks_signal
role, state = sys.argv[1:]
register_stacks_signal()
file = PulseFile(role, "m")
pulse = PulseWriter(file.path)
def generate():
    pulse.note_updates()
    pulse.work(2)
step = {"idle": pulse.beat, "steps": generate, "waits": lambda: pulse.work(2)}[state]
while True:
    step()
    time.sleep(0.05)
"""


def make_runtime_folder(folder: Path) -> Path:
    """Add the runtime package, as in a model repository, and a folder for heartbeats."""
    (folder / "tllm_runtime").symlink_to(Path(runtime.__file__).parent)
    (folder / "pulses").mkdir()
    return folder


@contextmanager
def counting(folder: Path, role: str, state: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of the model `m` that writes heartbeats to `folder`, and kill it at the end.

    In the state "idle", it is idle. In the states "steps" and "waits", it has two requests, and
    completes steps only in the former.
    """
    command = (sys.executable, "-c", _COUNT, role, state)
    environ = {**os.environ, PULSES_VARIABLE: str(folder)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: any(any(each.read_bytes()) for each in folder.glob(f"{role}.*")))
            yield process
        finally:
            process.kill()
