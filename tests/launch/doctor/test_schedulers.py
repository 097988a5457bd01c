"""Detection of MPI, Slurm and Kubernetes, with scripted output of their programs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trtllm_serve_cli.launch.doctor.schedulers import (
    Runner,
    Scheduler,
    detect_kubernetes,
    detect_mpi,
    detect_slurm,
)
from trtllm_serve_cli.processes import CommandResult

REFUSED = "The connection to the server localhost:8080 was refused"


def answering(*answers: CommandResult | None) -> Runner:
    """Return a runner that returns the answers in turn."""
    remaining = list(answers)

    def run(command: Sequence[str]) -> CommandResult | None:
        return remaining.pop(0)

    return run


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to …\n", Scheduler("Open MPI 4.1.4")),
        (
            "HYDRA build details:\n    Version:                                 4.1.2\n",
            Scheduler("MPICH 4.1.2", "not Open MPI"),
        ),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\n",
            Scheduler("Intel MPI 2021.9", "not Open MPI"),
        ),
        ("prun 1\n", Scheduler("mpirun", "unknown implementation")),
    ],
)
def test_mpirun_implementation_is_detected(output: str, found: Scheduler) -> None:
    assert detect_mpi(answering(CommandResult(0, output))) == found


def test_missing_programs_are_none() -> None:
    assert detect_mpi(answering(None)) is None
    assert detect_slurm(answering(None)) is None
    assert detect_kubernetes(answering(None)) is None


def test_slurm_with_and_without_its_controller() -> None:
    version = CommandResult(0, "slurm 24.05.1\n")
    assert detect_slurm(answering(version, CommandResult(0, "batch*\n"))) == Scheduler("24.05.1")
    away = CommandResult(1, "", "sinfo: fatal\nUnable to contact slurm controller\n")
    assert detect_slurm(answering(version, away)) == Scheduler(
        "24.05.1", "Unable to contact slurm controller"
    )
    assert detect_slurm(answering(CommandResult(1), CommandResult(None))) == Scheduler(
        "version unknown", "it timed out"
    )


def test_kubernetes_with_and_without_its_cluster() -> None:
    client = CommandResult(0, "Client Version: v1.31.0\nKustomize Version: v5.4.2\n")
    assert detect_kubernetes(answering(client, CommandResult(0, "{}"))) == Scheduler("1.31.0")
    refused = CommandResult(1, "", f"E1121 memcache.go\n{REFUSED}\n")
    assert detect_kubernetes(answering(client, refused)) == Scheduler("1.31.0", REFUSED)
