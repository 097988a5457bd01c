"""Find and check a server's processes: Triton, its models' processes and the engine workers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.supervisor import reaper

if TYPE_CHECKING:
    # Supervisors start faster without Slurm jobs, which this module imports.
    from trtllm_serve_cli.launch.servers.running import RunningServer

_STUB = "triton_python_b"
_GATEWAY_MODULE = "trtllm_serve_cli.gateway"
_RANK = "OMPI_COMM_WORLD_RANK"
# Time limit, in seconds, for a killed process to exit.
_KILLED_S = 5.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Part:
    """A process that the server requires.

    `what` is the message to report if the process dies. `model` is set for a model process,
    which exits normally when the model is unloaded.
    """

    what: str
    model: str | None = None


Parts = Mapping[psutil.Process, Part]


def find_tritons(plan: LaunchPlan, first_pid: int) -> list[psutil.Process]:
    """Return Triton's processes on this machine.

    If `mpirun` starts Triton, each rank is a Triton process. Otherwise, the server's first process
    is the only Triton process. Raise `psutil.Error` if the first process has ended, or if the
    environment of a rank cannot be read.
    """
    first = psutil.Process(first_pid)
    if not plan.runs_mpirun:
        return [first]
    # Skip mpirun's other child processes, which only connect to other nodes.
    return [each for each in first.children() if _RANK in each.environ()]


def find_parts(plan: LaunchPlan, first_pid: int) -> Parts:
    """Return the processes that the server requires. `first_pid` is the first process's ID."""
    parts: dict[psutil.Process, Part] = {}
    # Ignore errors, because the server may have exited. The supervisor detects an exit separately.
    with contextlib.suppress(psutil.Error):
        for triton in find_tritons(plan, first_pid):
            if plan.runs_mpirun:
                rank = triton.environ()[_RANK]
                parts[triton] = Part(f"rank {rank} (process {triton.pid}) died")
            for child in triton.children():
                if (model := _model_of(child)) is not None:
                    parts[child] = Part(f"the process of model {model} died", model)
    return parts


def update_parts(before: Parts, now: Parts) -> Parts:
    """Return the processes in `now` and the processes in `before` that have died.

    Omit the processes of unloaded models.
    """
    # A model process has died unexpectedly only if it is a zombie. If Triton had unloaded
    # the model, Triton would have reaped the process.
    died = {
        process: part
        for process, part in before.items()
        if process not in now and (part.model is None or _is_zombie(process))
    }
    return {**now, **died}


def find_dead(parts: Parts) -> Parts:
    """Return the parts whose processes are dead."""
    return {process: part for process, part in parts.items() if _is_dead(process)}


def confirm_dead(dead: Parts, dead_before: Parts) -> Parts:
    """Return the parts in `dead` that died unexpectedly.

    The process of an unloaded model is a zombie until Triton reaps it, and also counts as dead.
    Therefore, return a model's process only if it was already dead in the previous check,
    `dead_before`.
    """
    return {
        process: part
        for process, part in dead.items()
        if part.model is None or process in dead_before
    }


def describe_dead(dead: Parts) -> tuple[str, ...]:
    """Return the messages for the dead parts, without duplicates."""
    return tuple(dict.fromkeys(part.what for part in dead.values()))


def describe_exit(code: int) -> str:
    """Describe an exit code of `Popen`, which is negative if a signal ended the process."""
    return f"was terminated by signal {-code}" if code < 0 else f"ended with exit code {code}"


def send_signal(process: psutil.Process, number: signal.Signals) -> bool:
    """Send a signal to the process and return whether the signal could be sent."""
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
        return True
    return False


def list_tree(pid: int) -> list[psutil.Process]:
    """List all descendants of the process, or no processes if the process has ended."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def wait_until_dead(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait for the processes to exit. Return the processes that are still running.

    Zombies count as ended. `psutil.wait_procs` would wait until the parent has reaped each zombie.
    Reaping can take seconds if the parent is the first process of a small container.
    """
    deadline_s = time.monotonic() + timeout_s
    while alive := [each for each in processes if not _is_dead(each)]:
        if time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
    return alive


def kill_remains(sid: int, tree: Iterable[psutil.Process]) -> None:
    """Kill the processes in session `sid` and in `tree`.

    Wait up to 5 seconds for the processes in `tree` to exit.

    Search by session, because children of a dead server lose their parent but keep their session.
    Killing the process group is not enough, because `mpirun` gives each rank its own process group.
    """
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == sid:
                os.kill(pid, signal.SIGKILL)
    remains = list(tree)
    for process in remains:
        with contextlib.suppress(psutil.Error):
            process.kill()
    wait_until_dead(remains, _KILLED_S)


def measure_memory(server: RunningServer) -> dict[str, int]:
    """Measure the proportional set size (PSS) of each part of a running server, in bytes.

    The parts are "supervisor", "gateway", "tritonserver", "engine worker", and "model NAME" for
    each Python model. If the server serves several imported models, "engine worker of NAME"
    replaces "engine worker". Other processes are reported under their process names. Skip processes
    whose memory cannot be read. Return an empty dict if the server is a Slurm job or has ended.
    """
    parts: dict[str, int] = {}
    if server.job is not None:
        return parts
    try:
        supervisor = psutil.Process(server.state.supervisor_pid)
        processes = [supervisor, *supervisor.children(recursive=True)]
        if server.plan.container is not None and server.state.server_pid is not None:
            first = psutil.Process(server.state.server_pid)
            processes = list(dict.fromkeys((*processes, first, *first.children(recursive=True))))
    except psutil.Error:
        return parts
    for process in processes:
        try:
            name = _name(process, supervisor.pid, is_combined=bool(server.plan.combined))
            parts[name] = parts.get(name, 0) + process.memory_full_info().pss
        except psutil.Error:
            continue
    return parts


def _name(process: psutil.Process, supervisor_pid: int, *, is_combined: bool) -> str:
    """Return the name of the server part that includes the process, or else the process name.

    A part includes its child processes, for example `multiprocessing` workers.
    """
    if process.pid == supervisor_pid or reaper.__file__ in process.cmdline():
        return "supervisor"
    for each in (process, *process.parents()):
        if each.pid == supervisor_pid:
            break
        if (part := _find_part(each, is_combined=is_combined)) is not None:
            return part
    return str(process.name())


def _find_part(process: psutil.Process, *, is_combined: bool) -> str | None:
    if (model := _model_of(process)) is not None:
        return f"model {model}"
    if _GATEWAY_MODULE in process.cmdline()[:3]:
        return "gateway"
    if any(word.endswith(".worker") for word in process.cmdline()[:4]):
        stub = process.parent()
        owner = _model_of(stub) if stub is not None else None
        return f"engine worker of {owner or 'an unknown model'}" if is_combined else "engine worker"
    return None


def _model_of(process: psutil.Process) -> str | None:
    """Return the model that the process serves, or None for other processes."""
    try:
        command = process.cmdline()
        is_stub = process.name().startswith(_STUB) and len(command) > 1
    except psutil.Error:
        return None
    return Path(command[1]).parent.parent.name if is_stub else None


def wait_until_gone(pid: int, timeout_s: float) -> bool:
    """Wait for the process to exit. Return whether it has ended or is a zombie."""
    try:
        return not wait_until_dead([psutil.Process(pid)], timeout_s)
    except psutil.NoSuchProcess:
        return True


def _is_dead(process: psutil.Process) -> bool:
    """Return whether all threads of the process have ended.

    The main thread of a killed process can be a zombie while other threads still hold its ports.
    """
    try:
        if not process.is_running():
            return True
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.Error:
        return True


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
