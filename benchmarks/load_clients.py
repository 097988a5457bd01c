"""Run the clients that `load.py` compares, each as a separate program."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LENGTHS = (
    "--input-mean",
    "128",
    "--input-stdev",
    "5",
    "--output-mean",
    "20",
    "--output-stdev",
    "0",
)
IN_FLIGHT = 64


@dataclass(frozen=True)
class Measured:
    """The result of a client: requests/s, total CPU time, and the load of its loop (ours only)."""

    per_s: float
    cpu_s: float
    busiest_loop: float | None = None
    lag_p99_ms: float | None = None
    completed: int = 0


def run_client(command: list[str], environ: Mapping[str, str] | None = None) -> tuple[str, float]:
    """Run a command, and return its output and CPU time, including its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode:
        sys.exit(f"{command[:3]} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return result.stdout, cpu_s


def run_ours(where: Sequence[str], num_requests: int, *load: str) -> Measured:
    """Run `tllm bench`; `where` has the options that select the server."""
    words = ["bench", "token-norm-dist", *LENGTHS, "--json", *where, *load]
    words += ["--num-requests", str(num_requests)]
    printed, cpu_s = run_client([sys.executable, "-m", "trtllm_serve_cli.cli.main", *words])
    result = json.loads(printed)
    summary = result["summary"]
    assert summary["num_failed"] == 0, result["errors"]
    return Measured(
        per_s=summary["completed_requests_per_s"],
        cpu_s=cpu_s,
        busiest_loop=result["client"]["busiest_loop"],
        lag_p99_ms=summary["schedule_lag"]["p99_ms"],
        completed=summary["num_completed"],
    )


def run_upstreams(
    address: str, num_requests: int, script: Path, python: str, mode: str
) -> Measured:
    """Run upstream's program, and read the rate from the first row of its table."""
    command = [python, str(script), "-i", "grpc", "-u", address]
    command += ["--num-requests", str(num_requests), "--max-input-len", "500"]
    command += ["--exclude-input-in-output", *(["--decoupled"] if mode == "decoupled" else [])]
    printed, cpu_s = run_client([*command, "token-norm-dist", *LENGTHS])
    (row,) = (line for line in printed.splitlines() if "Requests/Sec" in line)
    return Measured(float(row.split("|")[2]), cpu_s)
