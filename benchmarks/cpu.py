"""Measure the CPU time of a server's processes, and sample its GPUs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics
from trtllm_serve_cli.metrics.summary import summarize

CLIENT, WORKER = "client (this process)", "engine worker"


def cpu_seconds(server: RunningServer) -> dict[str, float]:
    """Return the CPU time of this process, Triton, its stubs, and the engine's processes."""
    return {part: sum(each.values()) for part, each in cpu_by_process(server).items()}


def cpu_by_process(server: RunningServer) -> dict[str, dict[int, float]]:
    """Return the CPU time by part and process id; a part can have several processes."""
    supervisor = psutil.Process(server.state.supervisor_pid)
    this = psutil.Process()
    seconds = {CLIENT: {this.pid: _cpu_of(this)}}
    for process in supervisor.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            seconds.setdefault(part_of(process), {})[process.pid] = _cpu_of(process)
    return seconds


def part_of(process: psutil.Process) -> str:
    command = process.cmdline()
    # The command line of a process that is ending is empty.
    if process.name().startswith("triton_python_b") and len(command) > 1:
        return f"stub of {Path(command[1]).parent.parent.name}"
    if command and command[0].startswith("VLLM"):
        return command[0].split()[0]
    if any(word.endswith(".worker") for word in command[:4]):
        parent = process.parent()
        is_child = parent is not None and any(w.endswith(".worker") for w in parent.cmdline()[:4])
        return "engine's own processes" if is_child else WORKER
    return process.name()


def _cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def watching(server: RunningServer) -> Iterator[list[list[dict[str, Any]]]]:
    """Yield a list that samples the GPUs in the server's metrics, about once per second."""
    seen: list[list[dict[str, Any]]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(1.0):
            page = parse_metrics(fetch_metrics(server.endpoint.metrics), time.monotonic())
            if gpus := [asdict(gpu) for gpu in summarize(page).host.gpus]:
                seen.append(gpus)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
