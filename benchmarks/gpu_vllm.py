"""Run vLLM alone: the jobs of `gpu_raw.py` and vLLM's server, in the Python with vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_check import Check

from trtllm_serve_cli.processes import last_lines, run_logged

RAW_PORT = 8173


def run_raw(
    check: Check, name: str, arguments: dict[str, Any], jobs: dict[str, Any]
) -> dict[str, Any]:
    """Run the jobs in the Python with vLLM, and return their results."""
    work, result = check.work / f"{name}.jobs.json", check.work / f"{name}.result.json"
    work.write_text(json.dumps({"arguments": arguments, "jobs": jobs}))
    log = check.work / f"{name}.log"
    for old in (result, log):
        old.unlink(missing_ok=True)
    script = Path(__file__).with_name("gpu_raw.py")
    command = (check.python, str(script), str(work), str(result))
    if code := run_logged(command, log, environ=clean_environ()):
        raise RuntimeError("\n".join([f"exit code {code}; {log} ends with", *last_lines(log, 15)]))
    found: dict[str, Any] = json.loads(result.read_text())
    return found


@contextlib.contextmanager
def serving(check: Check, folder: Path, *more_flags: str) -> Iterator[int]:
    """Run vLLM's server with a model as `m` on `RAW_PORT`, and yield its process id."""
    arguments = check.arguments(folder)
    model = arguments.pop("model")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items()]
    with (check.work / "raw-server.log").open("wb") as log:
        process = subprocess.Popen(
            (check.python, "-m", "vllm.entrypoints.cli.main", "serve", model, *flags, *more_flags,
             "--served-model-name=m", f"--port={RAW_PORT}", "--host=127.0.0.1"),
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=clean_environ(),
        )  # fmt: skip
        try:
            wait_for_port(RAW_PORT, process)
            yield process.pid
        finally:
            end_group(process)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server responds to its health check; the part's time limit applies."""
    while process.poll() is None:
        health = f"http://127.0.0.1:{port}/health"
        with contextlib.suppress(OSError), urllib.request.urlopen(health, timeout=2):
            return
        time.sleep(0.5)
    raise RuntimeError(f"the server on port {port} ended with exit code {process.returncode}")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Stop a process and its children."""
    for number, patience_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)


def clean_environ() -> dict[str, str]:
    """Return the environment without PYTHONPATH: vLLM's Python has its own packages."""
    return {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
