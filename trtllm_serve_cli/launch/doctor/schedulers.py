"""Detect MPI, Slurm and Kubernetes on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtllm_serve_cli.processes import CommandResult, run_captured

# Maps each MPI implementation to a pattern for the version in the output of `mpirun --version`.
_MPI = {
    "Open MPI": re.compile(r"\(Open MPI\) (\S+)"),
    "Intel MPI": re.compile(r"Intel\(R\) MPI Library.*?Version (\S+)"),
    "MPICH": re.compile(r"HYDRA build details:\s+Version:\s+(\S+)"),
}
_TIMEOUT_S = 5.0
_UNKNOWN = "version unknown"

Runner = Callable[[Sequence[str]], CommandResult | None]


@dataclass(frozen=True, slots=True)
class Scheduler:
    """An installed scheduler or MPI implementation.

    `trouble` explains why the scheduler or MPI cannot be used, or is empty if it works.
    """

    version: str
    trouble: str = ""


def _run(command: Sequence[str]) -> CommandResult | None:
    return run_captured(command, _TIMEOUT_S)


def detect_mpi(run: Runner = _run) -> Scheduler | None:
    """Return the implementation and version of the `mpirun` on PATH, or None if it is missing.

    Set `trouble` for all implementations except Open MPI, because `--mode mpi` requires Open MPI.
    """
    answer = run(("mpirun", "--version"))
    if answer is None:
        return None
    found = {
        name: match[1] for name, pattern in _MPI.items() if (match := pattern.search(answer.out))
    }
    for name, version in found.items():
        return Scheduler(f"{name} {version}", "" if name == "Open MPI" else "not Open MPI")
    return Scheduler("mpirun", answer.failure or "unknown implementation")


def detect_slurm(run: Runner = _run) -> Scheduler | None:
    """Return Slurm's version and any controller error, or None if Slurm is not installed."""
    version = run(("sinfo", "--version"))
    if version is None:
        return None
    answer = run(("sinfo", "--noheader", "--format=%P"))
    trouble = answer.failure if answer is not None else ""
    return Scheduler(version.out.strip().removeprefix("slurm ") or _UNKNOWN, trouble)


def detect_kubernetes(run: Runner = _run) -> Scheduler | None:
    """Return kubectl's version and any cluster error, or None if kubectl is not installed."""
    client = run(("kubectl", "version", "--client"))
    if client is None:
        return None
    version = re.search(r"Client Version: v?(\S+)", client.out)
    answer = run(("kubectl", "get", "--raw", "/version", "--request-timeout=3s"))
    trouble = answer.failure if answer is not None else ""
    return Scheduler(version[1] if version else _UNKNOWN, trouble)
