"""Measure how fast a server detects processes that hang, and recovers.

    python benchmarks/hangs.py -m MODEL [--hang-timeout 120] [--only VICTIM] [--json]

Serves a copy of an imported model, and stops its processes one after another with SIGSTOP, each
while a request is in flight. For the last row, a step of the engine does not return. Prints the
seconds until `tllm status` and `/health` report the hang, until the request in flight has ended,
and until the server is ready again and generates a token.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from trtllm_serve_cli.client.ask import generate
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.server import probe_token
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.server_state import read_state
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.server_processes import wait_until_dead
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import find_home

PORTS = {"http_port": 8120, "grpc_port": 8121, "metrics_port": 8122, "openai_port": 8123}
# Victim -> words in its command line.
VICTIMS = {
    "engine worker": "tllm_runtime.worker",
    "Triton": "--model-repository",
    "process of tensorrt_llm": "/tensorrt_llm/1/model.py",
    "process of the text model": "/ensemble/1/model.py",
    "gateway": "trtllm_serve_cli.gateway",
}
STEP = "none; a step does not return"
# Makes the engine's steps wait while this file exists in the model's repository.
MARKER = "steps-wait"
SIGNATURE = "    def step(self) -> list[SequenceUpdate]:\n"
WAIT = """        import time
        while Path("{marker}").exists():
            time.sleep(0.05)
"""
LIMIT_S = 400.0
POLL_S = 0.1
NUM_TOKENS = 500


def main() -> None:
    """Measure each victim, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--hang-timeout", type=float, default=120.0)
    parser.add_argument("--only", choices=(*VICTIMS, STEP))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    names = (arguments.only,) if arguments.only else (*VICTIMS, STEP)
    options = {**PORTS, "hang_timeout_s": arguments.hang_timeout, "openai_processes": 1}
    with tempfile.TemporaryDirectory() as folder:
        repository = copy_model(arguments.model, Path(folder))
        plan = plan_for_this_machine(find_home(), (), options, repositories=[repository])
        server = launch(plan, on_progress=lambda loading: None)
        try:
            rows = {name: measure(server, name) for name in names}
        finally:
            stop_server(server, 0.0)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    columns = list(next(iter(rows.values())))
    print(f"| stopped process | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for name, row in rows.items():
        print(f"| {name} | {' | '.join(f'{row[each]:.1f}' for each in columns)} |")


def copy_model(model: str, folder: Path) -> Path:
    """Copy a model's repository, and make the engine's steps wait while the marker exists."""
    repository = folder / model
    shutil.copytree(find_home().models / model, repository, symlinks=True)
    (engine,) = repository.glob("tensorrt_llm/1/tllm_runtime/engines/openvino/engine.py")
    text = engine.read_text()
    assert SIGNATURE in text
    engine.write_text(text.replace(SIGNATURE, SIGNATURE + WAIT.format(marker=repository / MARKER)))
    return repository


def measure(server: RunningServer, name: str) -> dict[str, float]:
    """Make a process hang while a request is in flight; return the seconds until each event."""
    victim = find_process(server, VICTIMS.get(name, VICTIMS["engine worker"]))
    ended_s: list[float] = []
    request = threading.Thread(target=send, args=(server, ended_s), daemon=True)
    request.start()
    time.sleep(1.0)
    started_s = time.monotonic()
    marker = server.plan.repository / MARKER
    if name == STEP:
        marker.touch()
    else:
        victim.send_signal(signal.SIGSTOP)
    row = {
        "status": wait(started_s, lambda: phase_of(server) == "unresponsive"),
        "health": wait(started_s, lambda: not is_healthy(server)),
        "killed": wait(started_s, lambda: not wait_until_dead([victim], 0)),
    }
    marker.unlink(missing_ok=True)
    row["ready again"] = wait(started_s, lambda: is_ready(server, victim))
    request.join(LIMIT_S)
    return {**row, "request ended": ended_s[0] - started_s if ended_s else float("nan")}


def find_process(server: RunningServer, words: str) -> psutil.Process:
    """Return the process of the server whose command line contains `words`."""
    processes = psutil.Process(server.state.supervisor_pid).children(recursive=True)
    return next(each for each in processes if words in " ".join(each.cmdline()))


def send(server: RunningServer, ended_s: list[float]) -> None:
    """Send a long request to Triton, and record when it ends or fails."""
    request = GenerateRequest("Once upon a time", max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
    with contextlib.suppress(TllmError):
        generate(server.endpoint, server.text_model(), request, "grpc")
    ended_s.append(time.monotonic())


def phase_of(server: RunningServer) -> str:
    """Return the phase in the supervisor's record."""
    state = read_state(server.directory)
    return "" if state is None else state.phase


def is_healthy(server: RunningServer) -> bool:
    """Return whether `/health` of the gateway returns 200."""
    assert server.plan.gateway is not None
    try:
        with urllib.request.urlopen(f"{server.plan.gateway.url}/health", timeout=1.0):
            return True
    except (OSError, urllib.error.URLError):
        return False


def is_ready(server: RunningServer, victim: psutil.Process) -> bool:
    """Return whether the victim was replaced, and the server generates tokens again."""
    if wait_until_dead([victim], 0) or phase_of(server) != "ready" or not is_healthy(server):
        return False
    try:
        probe_token(server.endpoint, server.text_model(), 20.0)
    except TllmError:
        return False
    return True


def wait(started_s: float, condition: Callable[[], Any]) -> float:
    """Wait for a condition, and return the seconds since `started_s`."""
    while not condition():
        if time.monotonic() - started_s > LIMIT_S:
            return float("nan")
        time.sleep(POLL_S)
    return time.monotonic() - started_s


if __name__ == "__main__":
    main()
