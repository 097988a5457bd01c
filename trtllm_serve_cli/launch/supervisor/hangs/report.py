"""Write a report about the hung parts of a server."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import psutil

from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.processes import last_lines
from trtllm_serve_cli.runtime.watch.hung_processes import write_stacks
from trtllm_serve_cli.runtime.watch.liveness import Silence, describe_silence

REPORT_FILE = "hang-report.txt"
_NUM_LOG_LINES = 30
_NUM_STACK_LINES = 2000
_MAX_STACK_BYTES = 1024 * 1024
_TOOL_TIMEOUT_S = 10.0


def report_hang(
    plan: LaunchPlan, hanging: Sequence[Silence], processes: Sequence[psutil.Process]
) -> None:
    """Write a hang report to the server's folder, and log a line for each hung part.

    The report contains the state of `processes`, the stacks of the hung Python processes, the
    output of `nvidia-smi` and the last lines of the log.
    """
    path = plan.directory / REPORT_FILE
    states = [_describe(process) for process in processes]
    # Skip Triton, which is not a Python process.
    pids = [each.sign.pid for each in hanging if each.sign.owner != "triton"]
    before = last_lines(plan.log, _NUM_LOG_LINES)
    stacks = _read_stacks(hanging, plan.log)
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    messages = [describe_silence(each) for each in hanging]
    sections = [
        ("Hang", [f"{now} {message}" for message in messages]),
        ("Processes", states),
        *((f"py-spy dump --pid {pid}", _run("py-spy", "dump", "--pid", str(pid))) for pid in pids),
        ("nvidia-smi", _run("nvidia-smi")),
        ("Stacks, and the server log after them", stacks),
        ("Server log before the stacks", before),
    ]
    text = "\n\n".join("\n".join((f"== {title}", *lines)) for title, lines in sections if lines)
    # A full disk must not prevent the restart.
    with contextlib.suppress(OSError):
        path.write_text(f"{text}\n", encoding="utf-8")
    with contextlib.suppress(OSError), plan.log.open("a", encoding="utf-8") as log:
        for message in messages:
            log.write(f"E supervisor] {message}; restarting it; report: {path}\n")


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return (
            f"{process.pid:>8} {process.status():<12} {process.num_threads():>4} threads "
            f"{times.user + times.system:>9.1f} s CPU {_read_wait_channel(process.pid):<24} "
            f"{' '.join(process.cmdline())[:120]}"
        )
    return f"{process.pid:>8} ended"


def _read_wait_channel(pid: int) -> str:
    """Return the kernel function in which the process waits, or "" if it is unknown."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text(encoding="utf-8")
    return ""


def _read_stacks(hanging: Sequence[Silence], log: Path) -> list[str]:
    """Make the hung processes write their stacks to the log, and return the new log lines.

    Return at most the last `_NUM_STACK_LINES` new lines, and at most `_MAX_STACK_BYTES`.
    """
    start = 0
    with contextlib.suppress(OSError):
        start = log.stat().st_size
    write_stacks(hanging)
    return last_lines(log, _NUM_STACK_LINES, since=start, max_bytes=_MAX_STACK_BYTES)


def _run(*command: str) -> list[str]:
    """Return the output lines of a diagnostic program, or [] if it is not installed.

    If the program cannot be run or times out, return a line with the error.
    """
    if shutil.which(command[0]) is None:
        return []
    return list(_read_output(command))


def _read_output(command: Sequence[str]) -> Iterator[str]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"failed: {error}"
        return
    yield from (done.stdout + done.stderr).splitlines()
