"""Submit, track and cancel a server that runs as a Slurm job.

Each job has a folder in TLLM_HOME/servers, which must be on a file system that the nodes share. The
folder contains the submitted plan (`job.json`) and the address, exit code and logs that the job
writes. tllm queries Slurm for the job state, and stores the state only after Slurm's controller has
removed the job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import fetch_model_config
from trtllm_serve_cli.errors import LaunchFailed, MissingPart, TllmError
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.gateway.health import find_gateway_problem
from trtllm_serve_cli.launch.clusters.slurm import (
    ADDRESS_FILE,
    EXIT_CODE_FILE,
    JOB_LOG,
    SCRIPT_FILE,
)
from trtllm_serve_cli.launch.clusters.slurm_watch import WatchRecord, read_watch_record
from trtllm_serve_cli.launch.containers.deployment import Deployable
from trtllm_serve_cli.launch.logs.triton_log import explain_log
from trtllm_serve_cli.launch.planning.launch_plan import NO_ENDPOINT, LaunchPlan
from trtllm_serve_cli.launch.server_state import JOB_FILE, Phase, ServerState
from trtllm_serve_cli.paths import hold_lock, make_folder, write_text
from trtllm_serve_cli.processes import CommandResult, last_lines, run_captured

_QUEUED = (
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
)  # fmt: skip
_RUNNING = ("RUNNING", "RESIZING", "SIGNALING", "STAGE_OUT", "SUSPENDED", "STOPPED")
_ENDING = ("COMPLETING",)
_ALIVE = (*_QUEUED, *_RUNNING, *_ENDING)
_ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip
_UNKNOWN = "UNKNOWN"
_QUERY_TIMEOUT_S = 20.0
# This timeout is long, because a busy controller may accept a job even after sbatch was
# interrupted. tllm cannot track the job in this case, because it did not receive the job ID.
_SUBMIT_TIMEOUT_S = 300.0
_READY_TIMEOUT_S = 3.0
_CANCEL_TIMEOUT_S = 120.0
_POLL_S = 0.5

Runner = Callable[[Sequence[str]], CommandResult]


class _Rejected(LaunchFailed):
    """Raised if Slurm rejects a job."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A submitted job and its state when Slurm was last queried.

    - `state`: Slurm job state, or "UNKNOWN" if Slurm was not queried or did not report a state.
    - `reason`: why the job is waiting or has ended, or why `sacct` did not report its last state.
    - `is_forgotten`: true if the job has ended and tllm no longer queries its state, either because
      Slurm's controller has removed the job or because `tllm stop` was run for the job.
    """

    id: str
    state: str = _UNKNOWN
    reason: str = ""
    is_forgotten: bool = False

    @property
    def is_over(self) -> bool:
        """True if the job is known to have ended.

        Both `is_over` and `is_alive` are false if Slurm could not be queried, or if Slurm reported
        a state that tllm does not know.
        """
        return self.is_forgotten or self.state in _ENDED

    @property
    def is_alive(self) -> bool:
        """True if Slurm reports that the job is queued, running or completing."""
        return not self.is_forgotten and self.state in _ALIVE

    def describe(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"Slurm job {self.id} is {self.state}{why}"


def run_slurm(command: Sequence[str], timeout_s: float | None = None) -> CommandResult:
    """Run a Slurm command and return its result. The default timeout is longer for `sbatch`.

    Raise `MissingPart` if the command is not installed, and `LaunchFailed` if it times out.
    """
    if timeout_s is None:
        timeout_s = _SUBMIT_TIMEOUT_S if command[0] == "sbatch" else _QUERY_TIMEOUT_S
    answer = run_captured(command, timeout_s)
    if answer is None:
        script = ", or omit --submit to print the script" if command[0] == "sbatch" else ""
        raise MissingPart(
            f"{command[0]} is not installed.",
            why="tllm submits and tracks jobs with Slurm's commands",
            next_step="run tllm on a machine where Slurm is installed, for example a login "
            f"node{script}",
        )
    if answer.code is None:
        raise LaunchFailed(
            f"{command[0]} did not respond within {timeout_s:g} s.",
            next_step="run `sinfo` to check whether Slurm's controller responds",
        )
    return answer


def make_job_folder(servers: Path, name: str) -> Path:
    """Create a private folder for a new job that serves the model `name`. Return the path."""
    make_folder(servers)
    number = 1
    while True:
        folder = servers / f"slurm-{name}-{number}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return folder


def submit_job(
    script: str,
    model: Deployable,
    directory: Path,
    run: Runner = run_slurm,
    *,
    gateway: GatewayConfig | None = None,
) -> SlurmJob:
    """Write `script` to `directory`, submit it as a job, and write the files that track the job.

    `gateway` is the configuration of the gateway that the job starts. Raise `LaunchFailed` if Slurm
    rejects the job, or `MissingPart` if Slurm is not installed. In both cases, remove `directory`.
    If Slurm does not respond, raise `LaunchFailed` but keep `directory`, because Slurm may have
    accepted the job. Cancel the job if the files that track it cannot be written.
    """
    path = directory / SCRIPT_FILE
    path.write_text(script, encoding="utf-8")
    try:
        job = SlurmJob(_submit(path, model, run), "PENDING")
    except (_Rejected, MissingPart):
        shutil.rmtree(directory)
        raise
    try:
        plan = _plan(model, directory, gateway)
        # Create an empty log, because tllm may read the log before the first task starts.
        (directory / "server_0.log").touch()
        plan.log.symlink_to("server_0.log")
        facts = {"id": job.id, "submitted_at": time.time(), "stopped_at": None}
        _write(directory, {**facts, "plan": json.loads(plan.to_json())})
    except BaseException:
        with contextlib.suppress(TllmError):
            run(("scancel", job.id))
        raise
    return job


def _submit(script: Path, model: Deployable, run: Runner) -> str:
    """Submit the script and return the job ID.

    Raise `MissingPart` if Slurm is not installed, `_Rejected` if Slurm rejects the job, and
    `LaunchFailed` if Slurm does not respond.
    """
    try:
        answer = run(("sbatch", "--parsable", f"--chdir={script.parent}", str(script)))
    except LaunchFailed as error:
        raise LaunchFailed(
            error.what,
            why="Slurm's controller may have accepted the job, but tllm did not receive the job ID",
            next_step=f"run `squeue --name tllm-{model.name}` to find the job, and cancel it with "
            "`scancel ID`",
        ) from error
    if answer.code:
        raise _Rejected(
            f"Slurm rejected the job for {model.name}.",
            why=_output_of(answer),
            next_step="run `sinfo` to list the partitions and nodes, and compare them with the "
            f"script that `tllm deploy slurm -m {model.name}` prints without --submit",
        )
    return answer.out.strip().partition(";")[0]


def _plan(model: Deployable, directory: Path, gateway: GatewayConfig | None) -> LaunchPlan:
    return LaunchPlan(
        argv=("sbatch", str(directory / SCRIPT_FILE)),
        environ={},
        directory=directory,
        repository=model.repository,
        models=(model.name,),
        text_models=(model.text_model,),
        loading=model.models,
        endpoint=NO_ENDPOINT,
        host="0.0.0.0",
        gateway=gateway,
    )


def read_job(
    directory: Path, run: Runner = run_slurm
) -> tuple[LaunchPlan, ServerState, SlurmJob] | None:
    """Return the plan, state and job in `directory`, or None if it contains no valid job file.

    Query Slurm for the job state unless the job was stopped. If the controller has removed the job,
    save the last state, so that later calls do not query Slurm. Do not save it if `sacct` did not
    report the last state, because it may do so later. If the query fails, the phase is "unknown".
    """
    try:
        facts = json.loads((directory / JOB_FILE).read_text(encoding="utf-8"))
        plan = LaunchPlan.from_json(json.dumps(facts["plan"]))
        job = SlurmJob(facts["id"])
        is_stopped = facts["stopped_at"] is not None
        ended = facts.get("ended")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    address, openai_port = _read_address(directory)
    plan = dataclasses.replace(plan, gateway=_locate(plan.gateway, address, openai_port))
    if is_stopped:
        return plan, _state("stopped"), dataclasses.replace(job, is_forgotten=True)
    try:
        job = SlurmJob(job.id, ended[0], ended[1], True) if ended else query_slurm(job.id, run)
    except TllmError as error:
        why = (f"Slurm job {job.id}: {error.what}", *filter(None, (error.why,)))
        return plan, _state("unknown", why), job
    may_change = job.state == _UNKNOWN and job.reason
    if job.is_forgotten and not ended and not may_change:
        _update_job_file(directory, ended=[job.state, job.reason])
    if address is not None and job.state in _RUNNING:
        plan = dataclasses.replace(plan, endpoint=address)
    record = read_watch_record(directory)
    state = _derive_state(job, plan, record)
    return plan, dataclasses.replace(state, hangs=record.hangs), job


def query_slurm(job_id: str, run: Runner = run_slurm) -> SlurmJob:
    """Return the job with its current state in Slurm.

    If the controller has removed the job, the job has ended: query Slurm's accounting database
    (`sacct`) instead. If `sacct` reports an error, has no record of the job or reports that the job
    has not ended, the state is "UNKNOWN".

    Raise `MissingPart` if `squeue` or `sacct` is not installed. Raise `LaunchFailed` if one of the
    commands does not respond, or if `squeue` reports an error.
    """
    answer = run(("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%r"))
    if answer.code == 0 and answer.out.strip():
        state, _, reason = answer.out.splitlines()[0].partition("|")
        return SlurmJob(job_id, state.strip(), "" if reason == "None" else reason.strip())
    if answer.code and "Invalid job id" not in answer.err:
        raise LaunchFailed(
            "Slurm did not report the job state.",
            why=_output_of(answer),
            next_step="run `sinfo` to check whether Slurm's controller responds",
        )
    accounting = run(
        ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}",
         "--format=State,Reason")
    )  # fmt: skip
    if accounting.code == 0 and accounting.out.strip():
        state, _, reason = accounting.out.splitlines()[-1].partition("|")
        # Use only the first word, because the state may be, for example, "CANCELLED by 1000".
        state = state.split()[0]
        if state in _ALIVE:
            # The database has not received the end of the job, yet or at all.
            return SlurmJob(job_id, reason=f"`sacct` still reports {state}", is_forgotten=True)
        reason = "" if reason == "None" else reason.strip()
        return SlurmJob(job_id, state, reason, is_forgotten=True)
    error = f"`sacct` failed: {_output_of(accounting)}" if accounting.code else ""
    return SlurmJob(job_id, reason=error, is_forgotten=True)


def cancel_job(directory: Path, job: SlurmJob, run: Runner = run_slurm) -> None:
    """Cancel the job unless it has already ended, wait until it ends, and stop tracking it.

    Raise `LaunchFailed` if Slurm does not cancel the job or does not report its state, or if the
    job does not end in time. Raise `MissingPart` if Slurm is not installed.
    """
    if not job.is_over:
        _cancel(job, run)
    _update_job_file(directory, stopped_at=time.time())


def _cancel(job: SlurmJob, run: Runner) -> None:
    answer = run(("scancel", job.id))
    if answer.code and "Invalid job id" not in answer.err:
        raise LaunchFailed(
            f"Slurm did not cancel job {job.id}.",
            why=_output_of(answer),
            next_step="run `sinfo` to check whether Slurm's controller responds, then run `tllm "
            "stop` again",
        )
    deadline_s = time.monotonic() + _CANCEL_TIMEOUT_S
    while not (now := _query_after_cancel(job, run)).is_over:
        if time.monotonic() > deadline_s:
            raise LaunchFailed(
                f"Job {job.id} was cancelled, but did not end within {_CANCEL_TIMEOUT_S:g} s.",
                why=now.describe(),
                next_step="run `tllm status` to check the job, then run `tllm stop` again",
            )
        time.sleep(_POLL_S)


def _query_after_cancel(job: SlurmJob, run: Runner) -> SlurmJob:
    try:
        return query_slurm(job.id, run)
    except LaunchFailed as error:
        raise LaunchFailed(
            f"Job {job.id} was cancelled, but Slurm does not report whether it has ended.",
            why=error.why or error.what,
            next_step="run `sinfo` to check whether Slurm's controller responds, then run `tllm "
            "stop` again",
        ) from error


def _derive_state(job: SlurmJob, plan: LaunchPlan, record: WatchRecord) -> ServerState:
    if job.state in _QUEUED:
        return _state("queued", (job.describe(),))
    if job.state in _ENDING:
        return _state("stopping", (job.describe(),))
    if job.state in _RUNNING:
        if record.phase == "unresponsive":
            return _state("unresponsive", record.why)
        if plan.endpoint == NO_ENDPOINT or not _responds(plan.endpoint, plan.text_models[0]):
            return _state("starting", (job.describe(),))
        if plan.gateway is not None and (problem := find_gateway_problem(plan.gateway)):
            return _state("starting", (job.describe(), f"OpenAI-compatible gateway: {problem}"))
        return _state("ready", started_at=(plan.directory / ADDRESS_FILE).stat().st_mtime)
    if not job.is_over:
        return _state("unknown", (job.describe(),))
    return _state("failed", _explain(job, plan, record))


def _state(
    phase: Phase, why: tuple[str, ...] = (), *, started_at: float | None = None
) -> ServerState:
    return ServerState(phase, 0, 0.0, ready_at=started_at, why=why)


def _responds(endpoint: Endpoint, model: str) -> bool:
    """Return whether the server has loaded `model` and responds to requests."""
    try:
        fetch_model_config(endpoint, model, "http", _READY_TIMEOUT_S)
    except TllmError:
        return False
    return True


def _explain(job: SlurmJob, plan: LaunchPlan, record: WatchRecord) -> tuple[str, ...]:
    lines: Sequence[str] = record.why
    if record.phase != "failed":
        lines = explain_log(last_lines(plan.log, 400)) or last_lines(plan.directory / JOB_LOG, 5)
    if job.state != _UNKNOWN:
        return (job.describe(), *lines)
    code = last_lines(plan.directory / EXIT_CODE_FILE, 1)
    how = (
        f"the job ended with exit code {code[0]}" if code else "the job did not record an exit code"
    )
    if job.reason:
        what = f"Slurm's controller has no record of job {job.id}, and {how}"
        return (what, job.reason, *lines)
    return (f"Slurm has no record of job {job.id}, and {how}", *lines)


def _read_address(directory: Path) -> tuple[Endpoint | None, int | None]:
    """Return the job's endpoint and gateway port, or None for a value that is not recorded."""
    try:
        address: dict[str, Any] = json.loads((directory / ADDRESS_FILE).read_text(encoding="utf-8"))
        host = address["host"]
        endpoint = Endpoint(
            grpc=f"{host}:{address['grpc']}",
            http=f"{host}:{address['http']}",
            metrics=f"{host}:{address['metrics']}",
            restricted_token=address["token"],
        )
        return endpoint, address.get("openai")
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _locate(
    gateway: GatewayConfig | None, address: Endpoint | None, port: int | None
) -> GatewayConfig | None:
    """Return the gateway configuration with the host and port that the job has recorded.

    Return None if the job has no gateway, or has not recorded the host and port yet.
    """
    if gateway is None or address is None or port is None:
        return None
    return dataclasses.replace(gateway, host=address.http.rpartition(":")[0], port=port)


def _update_job_file(directory: Path, **facts: Any) -> None:
    """Add `facts` to the job file while holding a lock that prevents concurrent updates."""
    with hold_lock(directory / "job.lock", on_wait=lambda: None):
        known = json.loads((directory / JOB_FILE).read_text(encoding="utf-8"))
        _write(directory, {**known, **facts})


def _write(directory: Path, facts: dict[str, Any]) -> None:
    write_text(directory / JOB_FILE, json.dumps(facts, indent=2))


def _output_of(answer: CommandResult) -> str:
    return " ".join((answer.err or answer.out).split()) or f"exit code {answer.code}"
