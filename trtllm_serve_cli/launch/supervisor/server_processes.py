"""The processes of a server: Triton's, and those that it and its models have started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.servers.running import RunningServer

_STUB = "triton_python_b"
_RANK = "OMPI_COMM_WORLD_RANK"
# Until a process that was killed is gone.
_KILLED_S = 5.0


@dataclass(frozen=True, slots=True)
class Part:
    """A process without which the server is not whole: what is said when it is dead.

    `model` is what a model's process serves, which may be unloaded.
    """

    what: str
    model: str | None = None


Parts = Mapping[psutil.Process, Part]


def find_tritons(plan: LaunchPlan, first_pid: int) -> list[psutil.Process]:
    """The Tritons on this machine: those that `mpirun` has started, or else the first process.

    Raises psutil's errors when that is gone.
    """
    first = psutil.Process(first_pid)
    if not plan.runs_mpirun:
        return [first]
    # The other children are its ways to other nodes.
    return [each for each in first.children() if _RANK in each.environ()]


def find_parts(plan: LaunchPlan, first_pid: int) -> Parts:
    """Those that the server whose first process this is has now."""
    parts: dict[psutil.Process, Part] = {}
    # A server that is gone already is what whoever watches it will see.
    with contextlib.suppress(psutil.Error):
        for triton in find_tritons(plan, first_pid):
            if plan.runs_mpirun:
                rank = triton.environ()[_RANK]
                parts[triton] = Part(f"rank {rank} died, which was process {triton.pid}")
            for child in triton.children():
                if (model := _model_of(child)) is not None:
                    parts[child] = Part(f"the process of the model {model} died", model)
    return parts


def update_parts(before: Parts, now: Parts) -> Parts:
    """Which parts there have to be, where processes end with models that are unloaded."""
    # Triton waits for those that it ends itself, and not for those that die.
    died = {
        process: part
        for process, part in before.items()
        if process not in now and (part.model is None or _is_zombie(process))
    }
    return {**now, **died}


def find_dead(parts: Parts) -> Parts:
    """Those that are dead."""
    return {process: part for process, part in parts.items() if _is_dead(process)}


def confirm_dead(dead: Parts, dead_before: Parts) -> Parts:
    """Of the dead, those that were not unloaded, by the look before this one.

    One that ends while its model is unloaded is dead, too, until Triton has waited for it.
    """
    return {
        process: part
        for process, part in dead.items()
        if part.model is None or process in dead_before
    }


def describe_dead(dead: Parts) -> tuple[str, ...]:
    """What is said of them."""
    return tuple(dict.fromkeys(part.what for part in dead.values()))


def send_signal(process: psutil.Process, number: signal.Signals) -> bool:
    """Whether it could be sent: those in a container may be another user's."""
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
        return True
    return False


def list_tree(pid: int) -> list[psutil.Process]:
    """What the process has started, and what that has."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def kill_remains(sid: int, tree: Iterable[psutil.Process]) -> None:
    """Kill what is left in a session and of a tree, and wait until it is gone.

    Those of a server that died by itself have lost their parent, but not their session; `mpirun`
    gives each rank a process group of its own.
    """
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == sid:
                os.kill(pid, signal.SIGKILL)
    remains = list(tree)
    for process in remains:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(remains, _KILLED_S)


def measure_memory(server: RunningServer) -> dict[str, int]:
    """Bytes of memory by part of a running server, shared pages counted once (PSS).

    Nothing of a job, which is on another machine.
    Parts are "supervisor", "tritonserver", one per model's process and "engine worker", with the
    name of its model where there are several models.
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
    if process.pid == supervisor_pid:
        return "supervisor"
    if (model := _model_of(process)) is not None:
        return f"model {model}"
    if any(word.endswith(".worker") for word in process.cmdline()[:4]):
        stub = process.parent()
        owner = _model_of(stub) if stub is not None else None
        return f"engine worker of {owner or 'nobody'}" if is_combined else "engine worker"
    return str(process.name())


def _model_of(process: psutil.Process) -> str | None:
    """The model whose process it is, if it is one's and lives."""
    try:
        command = process.cmdline()
        is_stub = process.name().startswith(_STUB) and len(command) > 1
    except psutil.Error:
        return None
    return Path(command[1]).parent.parent.name if is_stub else None


def is_gone(pid: int) -> bool:
    """Whether the process has ended, reaped or not."""
    try:
        return _is_dead(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def _is_dead(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
