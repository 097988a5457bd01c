"""Slurm jobs, with scripted output of Slurm's commands."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import filelock
import pytest

from tests.launch.clusters.slurm_samples import PLAIN
from trtllm_serve_cli.errors import LaunchFailed, MissingPart
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.clusters.slurm_job import (
    SlurmJob,
    cancel_job,
    make_job_folder,
    query_slurm,
    read_job,
    run_slurm,
    submit_job,
)
from trtllm_serve_cli.launch.servers.running import list_servers
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.processes import CommandResult

Output = tuple[int, str, str]
FORGOTTEN: Output = (1, "", "slurm_load_jobs error: Invalid job id specified\n")


class FakeSlurm:
    """A Slurm that returns scripted output and records the commands."""

    def __init__(self, answers: Mapping[str, Output | Sequence[Output]]) -> None:
        self._answers = {
            name: [output] if isinstance(output[0], int) else list(output)
            for name, output in answers.items()
        }
        self.commands: list[tuple[str, ...]] = []

    def __call__(self, command: Sequence[str]) -> CommandResult:
        self.commands.append(tuple(command))
        answers = self._answers[command[0]]
        return CommandResult(*(answers.pop(0) if len(answers) > 1 else answers[0]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the submitted job 12."""
    directory = make_job_folder(tmp_path, "llama")
    slurm = FakeSlurm({"sbatch": (0, "12;cluster\n", "")})
    assert submit_job("script", PLAIN, directory, slurm) == SlurmJob("12", "PENDING")
    assert slurm.commands == [
        ("sbatch", "--parsable", f"--chdir={directory}", f"{directory}/job.sbatch")
    ]
    return directory


def phase_and_why(folder: Path, **answers: Output) -> tuple[str, tuple[str, ...]]:
    found = read_job(folder, FakeSlurm(answers))
    assert found is not None
    return found[1].phase, found[1].why


def test_job_folders_are_new_and_private(tmp_path: Path) -> None:
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
def test_phase_follows_the_state_in_slurm(folder: Path, squeue: str, phase: str, why: str) -> None:
    assert phase_and_why(folder, squeue=(0, squeue, "")) == (phase, (why,))


def record(folder: Path, phase: str, hangs: int) -> None:
    (folder / "state").mkdir()
    state = {"server_pid": 7, "phase": phase, "why": ["it hangs"], "restarts": 0, "hangs": hangs}
    (folder / "state" / "state.json").write_text(json.dumps(state))


def test_job_with_a_process_that_hangs_is_unresponsive(folder: Path) -> None:
    record(folder, "unresponsive", 2)
    found = read_job(folder, FakeSlurm({"squeue": (0, "RUNNING|None\n", "")}))
    assert found is not None
    assert (found[1].phase, found[1].why, found[1].hangs) == ("unresponsive", ("it hangs",), 2)


def test_job_that_ended_because_of_a_hang_reports_the_reason(folder: Path) -> None:
    record(folder, "failed", 1)
    assert phase_and_why(folder, squeue=(0, "FAILED|NonZeroExitCode\n", "")) == (
        "failed",
        ("Slurm job 12 is FAILED (NonZeroExitCode)", "it hangs"),
    )
    assert phase_and_why(folder, squeue=(0, "PENDING|BeginTime\n", ""))[0] == "queued"


def test_query_falls_back_to_the_accounting(folder: Path) -> None:
    sacct = (0, "CANCELLED by 1000|None\n", "")
    assert query_slurm("12", FakeSlurm({"squeue": FORGOTTEN, "sacct": sacct})) == SlurmJob(
        "12", "CANCELLED", is_forgotten=True
    )


def test_forgotten_job_is_explained_by_its_files(folder: Path) -> None:
    (folder / "exit-code").write_text("1\n")
    (folder / "job.log").write_text("srun: error: no such image\n")
    sacct = (1, "", "Slurm accounting storage is disabled\n")
    assert phase_and_why(folder, squeue=FORGOTTEN, sacct=sacct) == (
        "failed",
        (
            "Slurm's controller has no record of job 12, and the job ended with exit code 1",
            "`sacct` failed: Slurm accounting storage is disabled",
            "srun: error: no such image",
        ),
    )


def test_job_without_a_record_is_explained_by_its_files(folder: Path) -> None:
    assert phase_and_why(folder, squeue=FORGOTTEN, sacct=(0, "", "")) == (
        "failed",
        ("Slurm has no record of job 12, and the job did not record an exit code",),
    )


@pytest.mark.parametrize(
    ("sacct", "reason"),
    [
        ((1, "", "sacct: error: No database\n"), "`sacct` failed: sacct: error: No database"),
        ((0, "RUNNING|None\n", ""), "`sacct` still reports RUNNING"),
    ],
)
def test_accounting_is_queried_until_it_reports_the_end(
    folder: Path, sacct: Output, reason: str
) -> None:
    slurm = FakeSlurm({"squeue": FORGOTTEN, "sacct": [sacct, (0, "TIMEOUT|None\n", "")]})
    phases = [read_job(folder, slurm) for _ in range(2)]
    assert [found[1].phase for found in phases if found is not None] == ["failed", "failed"]
    assert [found[1].why for found in phases if found is not None] == [
        (
            "Slurm's controller has no record of job 12, and the job did not record an exit code",
            reason,
        ),
        ("Slurm job 12 is TIMEOUT",),
    ]


def test_forgotten_job_is_queried_once(folder: Path) -> None:
    slurm = FakeSlurm({"squeue": FORGOTTEN, "sacct": (0, "FAILED|NonZeroExitCode\n", "")})
    first, again = read_job(folder, slurm), read_job(folder, slurm)
    assert first == again
    assert first is not None
    assert first[2] == SlurmJob("12", "FAILED", "NonZeroExitCode", is_forgotten=True)
    assert [command[0] for command in slurm.commands] == ["squeue", "sacct"]


def test_preempted_job_is_queried_again(folder: Path) -> None:
    slurm = FakeSlurm({"squeue": [(0, "PREEMPTED|None\n", ""), (0, "PENDING|None\n", "")]})
    phases = [found[1].phase for _ in range(2) if (found := read_job(folder, slurm)) is not None]
    assert phases == ["failed", "queued"]


def test_unreachable_controller_gives_an_unknown_phase(folder: Path) -> None:
    squeue = (1, "", "slurm_load_jobs error: Unable to contact slurm controller\n")
    assert phase_and_why(folder, squeue=squeue) == (
        "unknown",
        (
            "Slurm job 12: Slurm did not report the job state.",
            "slurm_load_jobs error: Unable to contact slurm controller",
        ),
    )


def test_slurm_command_that_times_out_is_the_only_reason(folder: Path) -> None:
    def time_out(command: Sequence[str]) -> CommandResult:
        raise LaunchFailed(f"{command[0]} did not respond within 20 s.")

    found = read_job(folder, time_out)
    assert found is not None
    assert found[1].why == ("Slurm job 12: squeue did not respond within 20 s.",)


def test_rejected_job_reports_the_reason_and_is_not_tracked(tmp_path: Path) -> None:
    directory = make_job_folder(tmp_path, "llama")
    slurm = FakeSlurm({"sbatch": (1, "", "sbatch: error: invalid partition: x\n")})
    with pytest.raises(LaunchFailed, match="invalid partition: x"):
        submit_job("script", PLAIN, directory, slurm)
    assert not directory.exists()


def install_hanging_program(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a program on PATH that never exits."""
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_submit_timeout_names_the_job_that_may_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_hanging_program(tmp_path / "sbatch", monkeypatch)
    run = partial(run_slurm, timeout_s=0.1)
    with pytest.raises(LaunchFailed) as raised:
        submit_job("script", PLAIN, make_job_folder(tmp_path, "llama"), run)
    assert str(raised.value) == (
        "sbatch did not respond within 0.1 s.\n"
        "Why: Slurm's controller may have accepted the job, but tllm did not receive the job ID\n"
        f"Next: run `squeue --name tllm-{PLAIN.name}` to find the job, and "
        "cancel it with `scancel ID`"
    )


def test_job_that_cannot_be_tracked_is_cancelled(tmp_path: Path) -> None:
    directory = make_job_folder(tmp_path, "llama")
    (directory / "job.json").mkdir()
    slurm = FakeSlurm({"sbatch": (0, "12\n", ""), "scancel": (0, "", "")})
    with pytest.raises(OSError):
        submit_job("script", PLAIN, directory, slurm)
    assert slurm.commands[1:] == [("scancel", "12")]


def test_cancel_waits_for_the_end_and_unlists_the_job(home_folder: Path, folder: Path) -> None:
    slurm = FakeSlurm(
        {
            "scancel": (0, "", ""),
            "squeue": [(0, "COMPLETING|None\n", ""), (0, "CANCELLED|None\n", "")],
        }
    )
    cancel_job(folder, SlurmJob("12", "RUNNING"), slurm)
    assert [command[0] for command in slurm.commands] == ["scancel", "squeue", "squeue"]
    servers = find_home().servers
    servers.mkdir(parents=True)
    folder.rename(servers / folder.name)
    assert list_servers(find_home()) == []


def test_updates_of_the_job_file_are_serialized(folder: Path) -> None:
    """`tllm stop`, for example, waits while `tllm status` rewrites the file."""
    with filelock.FileLock(folder / "job.lock"):
        ended = SlurmJob("12", "FAILED")
        stopping = threading.Thread(target=cancel_job, args=(folder, ended, FakeSlurm({})))
        stopping.start()
        stopping.join(0.2)
        assert stopping.is_alive()
    stopping.join(60)
    assert phase_and_why(folder) == ("stopped", ())


UNREACHABLE: Output = (1, "", "Unable to contact slurm controller\n")


def test_job_in_an_unknown_state_is_not_reported_as_stopped(folder: Path) -> None:
    slurm = FakeSlurm({"scancel": UNREACHABLE})
    with pytest.raises(LaunchFailed) as raised:
        cancel_job(folder, SlurmJob("12"), slurm)
    assert str(raised.value) == (
        "Slurm did not cancel job 12.\n"
        "Why: Unable to contact slurm controller\n"
        "Next: run `sinfo` to check whether Slurm's controller responds, then run `tllm stop` again"
    )
    slurm = FakeSlurm({"scancel": (0, "", ""), "squeue": UNREACHABLE})
    with pytest.raises(
        LaunchFailed, match="was cancelled, but Slurm does not report whether it has ended"
    ):
        cancel_job(folder, SlurmJob("12"), slurm)
    assert phase_and_why(folder, squeue=UNREACHABLE)[0] == "unknown"


def test_ended_job_is_unlisted_without_scancel(folder: Path) -> None:
    slurm = FakeSlurm({})
    cancel_job(folder, SlurmJob("12", "FAILED"), slurm)
    assert phase_and_why(folder) == ("stopped", ())


def test_machine_without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPart, match="squeue is not installed"):
        run_slurm(("squeue",))


def test_hanging_slurm_command_times_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_hanging_program(tmp_path / "squeue", monkeypatch)
    with pytest.raises(LaunchFailed, match=r"squeue did not respond within 0\.1 s"):
        run_slurm(("squeue",), timeout_s=0.1)


@pytest.mark.parametrize(("openai", "url"), [(9000, "http://node1:9000"), (None, None)])
def test_address_of_the_gateway_is_the_address_of_the_node(
    tmp_path: Path, openai: int | None, url: str | None
) -> None:
    gateway = GatewayConfig(models=(), host="0.0.0.0")
    slurm = FakeSlurm({"sbatch": (0, "12\n", ""), "squeue": (0, "PENDING|None\n", "")})
    submit_job(
        "script", PLAIN, directory := make_job_folder(tmp_path, "llama"), slurm, gateway=gateway
    )
    queued = read_job(directory, slurm)
    assert queued is not None
    assert queued[0].gateway is None
    address = {"host": "node1", "http": 1, "grpc": 2, "metrics": 3, "token": "t", "openai": openai}
    (directory / "address.json").write_text(json.dumps(address))
    running = read_job(directory, slurm)
    assert running is not None
    located = running[0].gateway
    assert (located and located.url) == url
