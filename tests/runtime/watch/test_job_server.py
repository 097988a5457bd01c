"""The program that runs and watches Triton in a job, with a fake Triton and real processes."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.heartbeats import counting, make_runtime_folder
from tests.fakes.triton.server import FakeTriton
from tests.ports import free_ports
from tests.samples.launch_plans import FAKE_TRITON
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.launch.clusters.server_watch import watch_command
from trtllm_serve_cli.runtime.pulse import PULSES_VARIABLE, PulseFile, PulseWriter
from trtllm_serve_cli.runtime.watch.job_server import ServerWatch, log
from trtllm_serve_cli.runtime.watch.liveness import HangLimits
from trtllm_serve_cli.runtime.watch.watch_settings import WatchSettings

TOKEN = "s3cret-token"


class Job:
    """A task of a job in `folder`, with time limits of 1 s for an engine and 5 s for the rest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_file = folder / "state.json"
        (self.port,) = free_ports(1)
        self.regions = f"tllm-test-{self.port}-"

    @property
    def state(self) -> dict[str, Any]:
        """The state that the task has recorded, without its process id."""
        state = dict(json.loads(self.state_file.read_text()))
        self.triton_pid = state.pop("server_pid")
        return state

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @contextmanager
    def run(
        self, *command: str, rank: int = 0, hang_timeout_s: float = 1.0
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run the task, by default with a fake Triton, and kill it at the end."""
        address = f"127.0.0.1:{self.port}"
        task = (
            *watch_command(self.folder, "job_server"),
            f"--rank={rank}", f"--regions={self.regions}", f"--state={self.state_file}",
            f"--pulses={self.folder / 'pulses'}", f"--http={address}", f"--metrics={address}",
            f"--hang-timeout={hang_timeout_s}", "--load-timeout=1",
            "--", *(command or (sys.executable, FAKE_TRITON, str(self.port))),
        )  # fmt: skip
        # The first `python3` on PATH may be a slow script, for example of pyenv.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"TLLM_TOKEN": TOKEN, "TMPDIR": str(self.folder), "PATH": path}
        environ = {**os.environ, **own}
        with (
            (self.folder / "log").open("wb") as log,
            subprocess.Popen(
                task, env=environ, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            ) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(make_runtime_folder(tmp_path))
    yield job
    for region in Path("/dev/shm").glob(f"{job.regions}*"):
        region.unlink()


def wait_for_phase(job: Job, phase: str) -> None:
    wait_until(lambda: job.state_file.exists() and job.state["phase"] == phase)


READY = {"phase": "ready", "why": [], "restarts": 0, "hangs": 0}


@pytest.mark.parametrize("role", ["worker", "gateway"])
def test_process_that_hangs_is_reported_and_killed_alone(job: Job, role: str) -> None:
    with job.run(), counting(job.folder / "pulses", role, "idle") as process:
        wait_for_phase(job, "ready")
        assert job.state == READY
        process.send_signal(signal.SIGSTOP)
        wait_for_phase(job, "unresponsive")
        who = {"worker": "engine worker of m", "gateway": "OpenAI-compatible gateway"}[role]
        what = f"the {who} (process {process.pid}) has not responded for 2.5 s"
        assert job.state["why"] == [f"{what} (stopped by a signal)"]
        assert process.wait(60) == -signal.SIGKILL
        wait_for_phase(job, "ready")
        assert job.state == {**READY, "hangs": 1}
    assert f"E watch] {what} (stopped by a signal); restarting it\n" in job.log


def test_engine_without_a_step_is_killed_after_it_wrote_its_stacks(job: Job) -> None:
    with job.run(), counting(job.folder / "pulses", "worker", "waits") as process:
        assert process.wait(60) == -signal.SIGKILL
        assert process.stderr is not None
        assert b"most recent call first" in process.stderr.read()


def test_job_ends_if_the_process_of_a_model_hangs(job: Job) -> None:
    with job.run() as task, counting(job.folder / "pulses", "model", "idle") as process:
        wait_for_phase(job, "ready")
        process.send_signal(signal.SIGSTOP)
        assert task.wait(60) == 1
        what = f"the process of model m (process {process.pid}) has not responded for 2.5 s"
        assert job.state == {
            "phase": "failed", "why": [f"{what} (stopped by a signal)"], "restarts": 0, "hangs": 1,
        }  # fmt: skip
        assert is_gone(job.triton_pid)
    assert f"E watch] {what} (stopped by a signal); ending the job\n" in job.log


def test_job_ends_if_the_process_of_a_model_dies(job: Job) -> None:
    with job.run() as task:
        with counting(job.folder / "pulses", "model", "idle") as process:
            wait_for_phase(job, "ready")
        assert task.wait(60) == 1
    assert job.state["why"] == [f"the process of model m (process {process.pid}) died"]


def test_job_ends_if_triton_hangs(job: Job) -> None:
    with job.run() as task:
        wait_for_phase(job, "ready")
        assert job.state["phase"] == "ready"
        os.kill(job.triton_pid, signal.SIGSTOP)
        assert task.wait(60) == 1
    what = f"Triton has not responded on 127.0.0.1:{job.port} for 2.5 s (stopped by a signal)"
    assert job.state["why"] == [what]


def test_job_ends_if_an_engine_without_heartbeats_generates_no_token(job: Job) -> None:
    limits = HangLimits(hang_timeout_s=1.0, token_period_s=0.2)
    with FakeTriton() as triton:
        address = triton.endpoint.http
        inputs = '{"text_input": "Hello", "max_tokens": 1}'
        settings = WatchSettings(job.folder, address, address, limits, "m", inputs)
        watch = ServerWatch(settings, job.state_file, os.getpid())
        wait_until(lambda: not watch.check() and len(triton.requests) > 1)
        triton.hold.clear()
        wait_until(watch.check)
    assert job.state["why"] == ["m has not generated a token for 0.5 s"]


def test_state_that_could_not_be_written_is_written_later(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PULSES_VARIABLE, str(job.folder))
    job.state_file = job.folder / "state" / "state.json"
    job.state_file.parent.mkdir()
    with FakeTriton() as triton:
        address = triton.endpoint.http
        watch = ServerWatch(
            WatchSettings(job.folder, address, address, HangLimits()), job.state_file, os.getpid()
        )
        wait_until(lambda: not watch.check() and job.state == READY)
        shutil.rmtree(job.state_file.parent)
        pulse = PulseFile("worker", "m")
        PulseWriter(pulse.path).fail()
        assert not watch.check()
        job.state_file.parent.mkdir()
        assert not watch.check()
        pulse.close()
    assert job.state["phase"] == "unresponsive"


def test_hang_is_only_reported_without_a_time_limit(job: Job) -> None:
    pulses = job.folder / "pulses"
    with job.run(hang_timeout_s=0.0), counting(pulses, "worker", "idle") as process:
        wait_for_phase(job, "ready")
        process.send_signal(signal.SIGSTOP)
        wait_for_phase(job, "unresponsive")
        process.send_signal(signal.SIGCONT)
        wait_for_phase(job, "ready")
        assert job.state == READY


def test_signal_is_forwarded_and_the_exit_code_is_that_of_triton(job: Job) -> None:
    blocks_term = "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); "
    waits = "print('ready', flush=True); signal.sigwait([15]); sys.exit(7)"
    command = (sys.executable, "-c", blocks_term + waits)
    with job.run(*command) as task:
        wait_until(lambda: job.log == "ready\n")
        task.terminate()
        assert task.wait(60) == 7


def test_exit_code_names_the_signal_that_ended_triton(job: Job) -> None:
    with job.run("sh", "-c", "kill -9 $$") as task:
        assert task.wait(60) == 128 + signal.SIGKILL


def test_temporary_files_of_killed_processes_are_removed(job: Job) -> None:
    with job.run("sh", "-c", "touch $TLLM_SCRATCH/left; ls -d $TLLM_SCRATCH/*; kill -9 $$") as task:
        assert task.wait(60) == 128 + signal.SIGKILL
    left = Path(job.log.strip())
    assert left.name == "left"
    assert not left.parent.exists()


def test_other_ranks_do_not_record_a_state(job: Job) -> None:
    with job.run("true", rank=1) as task:
        assert task.wait(60) == 0
    assert not job.state_file.exists()


def test_token_and_regions_are_hidden_from_other_users(job: Job) -> None:
    region = Path(f"/dev/shm/{job.regions}region")
    script = f"umask 022; : > {region}; echo ready; while :; do sleep 0.1; done"
    with job.run("sh", "-c", script, f"--token={TOKEN}") as task:
        wait_until(lambda: job.log == "ready\n")
        (triton,) = Path(f"/proc/{task.pid}/task/{task.pid}/children").read_text().split()
        wait_until(lambda: region.stat().st_mode & 0o777 == 0o600)
        for pid in (task.pid, triton):
            wait_until(lambda line=Path(f"/proc/{pid}/cmdline"): TOKEN not in line.read_text())


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_does_not_end_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk())
    log("E", "the engine worker of m (process 7) has not responded for 2.5 s")
