"""Programs that start servers in other ways than `tllm start` alone: MPI, Slurm, Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtllm_serve_cli.processes import Answer, ask_program

# The name of each implementation of MPI, in what its mpirun says of itself.
_MPI = {
    "Open MPI": re.compile(r"\(Open MPI\) (\S+)"),
    "Intel MPI": re.compile(r"Intel\(R\) MPI Library.*?Version (\S+)"),
    "MPICH": re.compile(r"HYDRA build details:\s+Version:\s+(\S+)"),
}
_TIMEOUT_S = 5.0
_UNKNOWN = "version unknown"

Runner = Callable[[Sequence[str]], Answer | None]


@dataclass(frozen=True, slots=True)
class Scheduler:
    """`version` is that of its program; `trouble` is why what it leads to cannot be used, or ""."""

    version: str
    trouble: str = ""


def _run(command: Sequence[str]) -> Answer | None:
    return ask_program(command, _TIMEOUT_S)


def detect_mpi(run: Runner = _run) -> Scheduler | None:
    """The `mpirun` on PATH, its version with its implementation's name; None where there is none.

    The mode `mpi` speaks Open MPI's language alone.
    """
    answer = run(("mpirun", "--version"))
    if answer is None:
        return None
    found = {
        name: match[1] for name, pattern in _MPI.items() if (match := pattern.search(answer.out))
    }
    for name, version in found.items():
        return Scheduler(f"{name} {version}", "" if name == "Open MPI" else "it is not Open MPI's")
    return Scheduler("an mpirun", answer.trouble or "it does not say whose it is")


def detect_slurm(run: Runner = _run) -> Scheduler | None:
    """Slurm's commands, and whether its controller answers them."""
    version = run(("sinfo", "--version"))
    if version is None:
        return None
    answer = run(("sinfo", "--noheader", "--format=%P"))
    trouble = answer.trouble if answer is not None else ""
    return Scheduler(version.out.strip().removeprefix("slurm ") or _UNKNOWN, trouble)


def detect_kubernetes(run: Runner = _run) -> Scheduler | None:
    """`kubectl`, and whether its cluster answers."""
    client = run(("kubectl", "version", "--client"))
    if client is None:
        return None
    version = re.search(r"Client Version: v?(\S+)", client.out)
    answer = run(("kubectl", "get", "--raw", "/version", "--request-timeout=3s"))
    trouble = answer.trouble if answer is not None else ""
    return Scheduler(version[1] if version else _UNKNOWN, trouble)
