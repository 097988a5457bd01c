"""What becomes of a job, as Slurm's commands say it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import filelock
import pytest

from tests.launch.clusters.slurm_samples import PLAIN
from trtllm_serve_cli.errors import LaunchFailed, MissingPart
from trtllm_serve_cli.launch.clusters.slurm_job import (
    SlurmJob,
    ask_slurm,
    cancel_job,
    make_job_folder,
    read_job,
    run_slurm,
    submit_job,
)
from trtllm_serve_cli.launch.servers.running import list_servers
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.processes import Answer

Said = tuple[int, str, str]
FORGOTTEN: Said = (1, "", "slurm_load_jobs error: Invalid job id specified\n")


class FakeSlurm:
    """Answers each command as told, and keeps the commands."""

    def __init__(self, answers: Mapping[str, Said | Sequence[Said]]) -> None:
        self._answers = {
            name: [said] if isinstance(said[0], int) else list(said)
            for name, said in answers.items()
        }
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, command: Sequence[str]) -> Answer:
        self.asked.append(tuple(command))
        answers = self._answers[command[0]]
        return Answer(*(answers.pop(0) if len(answers) > 1 else answers[0]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the job 12, submitted."""
    directory = make_job_folder(tmp_path, "llama")
    slurm = FakeSlurm({"sbatch": (0, "12;cluster\n", "")})
    assert submit_job("script", PLAIN, directory, slurm) == SlurmJob("12", "PENDING")
    assert slurm.asked == [
        ("sbatch", "--parsable", f"--chdir={directory}", f"{directory}/job.sbatch")
    ]
    return directory


def judged(folder: Path, **answers: Said) -> tuple[str, tuple[str, ...]]:
    found = read_job(folder, FakeSlurm(answers))
    assert found is not None
    return found[1].phase, found[1].why


def test_folders_are_private_and_new(tmp_path: Path) -> None:
    first, second = (make_job_folder(tmp_path, "llama") for _ in range(2))
    assert (first.name, second.name) == ("slurm-llama-1", "slurm-llama-2")
    assert first.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("squeue", "phase", "why"),
    [
        ("PENDING|Resources\n", "queued", "Slurm job 12 is PENDING (Resources)"),
        ("RUNNING|None\n", "starting", "Slurm job 12 is RUNNING"),
        ("COMPLETING|None\n", "stopping", "Slurm job 12 is COMPLETING"),
        ("TIMEOUT|TimeLimit\n", "failed", "Slurm job 12 is TIMEOUT (TimeLimit)"),
        ("CANCELLED|None\n", "failed", "Slurm job 12 is CANCELLED"),
        ("WHATEVER_IS_NEW|None\n", "unknown", "Slurm job 12 is WHATEVER_IS_NEW"),
    ],
)
def test_states_of_slurm(folder: Path, squeue: str, phase: str, why: str) -> None:
    assert judged(folder, squeue=(0, squeue, "")) == (phase, (why,))


def test_accounting_knows_what_the_controller_forgot(folder: Path) -> None:
    sacct = (0, "CANCELLED by 1000|None\n", "")
    assert ask_slurm("12", FakeSlurm({"squeue": FORGOTTEN, "sacct": sacct})) == SlurmJob(
        "12", "CANCELLED", is_forgotten=True
    )


def test_forgotten_job_is_known_by_what_it_left(folder: Path) -> None:
    (folder / "exit-code").write_text("1\n")
    (folder / "job.log").write_text("srun: error: no such image\n")
    sacct = (1, "", "Slurm accounting storage is disabled\n")
    assert judged(folder, squeue=FORGOTTEN, sacct=sacct) == (
        "failed",
        (
            "Slurm does not know job 12 any more; it ended with exit code 1",
            "srun: error: no such image",
        ),
    )


def test_slurm_is_asked_no_more_of_a_job_that_it_has_forgotten(folder: Path) -> None:
    slurm = FakeSlurm({"squeue": FORGOTTEN, "sacct": (0, "FAILED|NonZeroExitCode\n", "")})
    first, again = read_job(folder, slurm), read_job(folder, slurm)
    assert first == again
    assert first is not None
    assert first[2] == SlurmJob("12", "FAILED", "NonZeroExitCode", is_forgotten=True)
    assert [command[0] for command in slurm.asked] == ["squeue", "sacct"]


def test_job_that_can_be_queued_again_is_asked_for(folder: Path) -> None:
    slurm = FakeSlurm({"squeue": [(0, "PREEMPTED|None\n", ""), (0, "PENDING|None\n", "")]})
    phases = [found[1].phase for _ in range(2) if (found := read_job(folder, slurm)) is not None]
    assert phases == ["failed", "queued"]


def test_controller_that_is_away_is_no_verdict(folder: Path) -> None:
    squeue = (1, "", "slurm_load_jobs error: Unable to contact slurm controller\n")
    assert judged(folder, squeue=squeue) == (
        "unknown",
        (
            "Slurm job 12: Slurm does not answer.",
            "slurm_load_jobs error: Unable to contact slurm controller",
        ),
    )


def test_refused_job_says_why_and_is_not_followed(tmp_path: Path) -> None:
    directory = make_job_folder(tmp_path, "llama")
    slurm = FakeSlurm({"sbatch": (1, "", "sbatch: error: invalid partition: x\n")})
    with pytest.raises(LaunchFailed, match="invalid partition: x"):
        submit_job("script", PLAIN, directory, slurm)
    assert read_job(directory, slurm) is None


def put_silent(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a program on the PATH that never answers."""
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_job_that_may_have_been_taken_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_silent(tmp_path / "sbatch", monkeypatch)
    run = partial(run_slurm, timeout_s=0.1)
    with pytest.raises(LaunchFailed) as raised:
        submit_job("script", PLAIN, make_job_folder(tmp_path, "llama"), run)
    assert str(raised.value) == (
        "sbatch did not answer for 0.1 s.\n"
        "Why: the controller may be busy, and have taken the job all the same: nothing of tllm's "
        "follows it then\n"
        f"Next: squeue --name tllm-{PLAIN.name}   (scancel ID ends it)"
    )


def test_job_that_cannot_be_followed_is_cancelled(tmp_path: Path) -> None:
    directory = make_job_folder(tmp_path, "llama")
    (directory / "job.json").mkdir()
    slurm = FakeSlurm({"sbatch": (0, "12\n", ""), "scancel": (0, "", "")})
    with pytest.raises(OSError):
        submit_job("script", PLAIN, directory, slurm)
    assert slurm.asked[1:] == [("scancel", "12")]


def test_cancelled_job_is_waited_for_and_no_longer_listed(home_folder: Path, folder: Path) -> None:
    slurm = FakeSlurm(
        {
            "scancel": (0, "", ""),
            "squeue": [(0, "COMPLETING|None\n", ""), (0, "CANCELLED|None\n", "")],
        }
    )
    cancel_job(folder, SlurmJob("12", "RUNNING"), slurm)
    assert [command[0] for command in slurm.asked] == ["scancel", "squeue", "squeue"]
    servers = find_home().servers
    servers.mkdir(parents=True)
    folder.rename(servers / folder.name)
    assert list_servers(find_home()) == []


def test_what_is_noted_waits_for_who_notes_something_else(folder: Path) -> None:
    """Such as a `tllm stop` for a `tllm status` that has read what it will write anew."""
    with filelock.FileLock(folder / "job.lock"):
        ended = SlurmJob("12", "FAILED")
        stopping = threading.Thread(target=cancel_job, args=(folder, ended, FakeSlurm({})))
        stopping.start()
        stopping.join(0.2)
        assert stopping.is_alive()
    stopping.join(60)
    assert judged(folder) == ("stopped", ())


AWAY: Said = (1, "", "Unable to contact slurm controller\n")


def test_job_of_which_nobody_knows_is_not_called_stopped(folder: Path) -> None:
    slurm = FakeSlurm({"scancel": AWAY})
    with pytest.raises(LaunchFailed) as raised:
        cancel_job(folder, SlurmJob("12"), slurm)
    assert str(raised.value) == (
        "Slurm did not cancel job 12.\n"
        "Why: Unable to contact slurm controller\n"
        "Next: sinfo   (then tllm stop again)"
    )
    slurm = FakeSlurm({"scancel": (0, "", ""), "squeue": AWAY})
    with pytest.raises(LaunchFailed, match="told to end; whether it has, Slurm does not say"):
        cancel_job(folder, SlurmJob("12"), slurm)
    assert judged(folder, squeue=AWAY)[0] == "unknown"


def test_job_that_has_ended_is_not_cancelled_but_followed_no_longer(folder: Path) -> None:
    slurm = FakeSlurm({})
    cancel_job(folder, SlurmJob("12", "FAILED"), slurm)
    assert judged(folder) == ("stopped", ())


def test_machine_without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPart, match="There is no squeue here"):
        run_slurm(("squeue",))


def test_slurm_that_is_silent_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_silent(tmp_path / "squeue", monkeypatch)
    with pytest.raises(LaunchFailed, match=r"squeue did not answer for 0\.1 s"):
        run_slurm(("squeue",), timeout_s=0.1)
