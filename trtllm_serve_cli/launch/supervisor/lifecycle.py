"""Start servers on this machine."""

from __future__ import annotations

import contextlib
import functools
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from trtllm_serve_cli.errors import LaunchFailed, NoServer
from trtllm_serve_cli.gateway.access.keys import KEYS_MARKER
from trtllm_serve_cli.launch.logs.triton_log import find_loading, is_option_rejected
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.server_state import (
    PLAN_FILE,
    START_LOCK,
    ServerState,
    read_state,
    reset_state_files,
)
from trtllm_serve_cli.launch.servers.running import RunningServer, read_plan, read_server
from trtllm_serve_cli.launch.supervisor.gateway_process import CONFIG_FILE
from trtllm_serve_cli.launch.supervisor.ports import check_ports
from trtllm_serve_cli.launch.supervisor.reaper import list_session
from trtllm_serve_cli.launch.supervisor.server_processes import describe_exit
from trtllm_serve_cli.launch.supervisor.stopping import remove_stale_container
from trtllm_serve_cli.launch.triton.shared_memory import remove_regions
from trtllm_serve_cli.paths import make_folder, try_lock
from trtllm_serve_cli.processes import die_with_parent, last_lines
from trtllm_serve_cli.repository.model.store import command_to_import_again, target_of
from trtllm_serve_cli.repository.planning.combined import write_combination

_POLL_S = 0.1
# Time limit, in seconds, for the processes of a killed supervisor's server to exit. The limit is
# longer than the five seconds that the reaper waits before it kills them.
_DIED_SERVER_S = 10.0
# Names of the entries in build/failures.yaml for engines that this machine cannot load or run.
_ENGINE_FAILURES = (
    "engine_of_another_device",
    "engine_of_another_version",
    "engine_unreadable",
    "gpu_memory",
    "gpu_too_old",
    "host_memory",
    "illegal_instruction",
    "shared_memory",
    "too_few_gpus",
)
TOKEN_FILE = "restricted-api-token"


def launch(plan: LaunchPlan, *, on_progress: Callable[[Sequence[str]], None]) -> RunningServer:
    """Start a supervised server and return it when it is ready.

    The server keeps running. `on_progress` is called repeatedly with the models that are still
    loading.

    Raise `BadInput` if this machine cannot listen on an address or a port. Raise `LaunchFailed` if
    the server already exists, if a port is in use or reserved, or if the start fails or is stopped.
    If the start fails, the error contains the cause from the server's log. Raise `RepositoryError`
    if a `config.pbtxt` of a combined repository is not valid. No process is left running after a
    failure or an interrupt.
    """
    with _prepared(plan):
        supervisor = _spawn_supervisor(plan.directory)
        with _stop_on_error(supervisor):
            state = _wait(plan, supervisor, on_progress)
    if state.phase != "ready":
        supervisor.wait()
        raise _failure_of(plan, state)
    return read_server(plan.directory)


def run_in_foreground(plan: LaunchPlan, *, on_ready: Callable[[], None]) -> None:
    """Run the server until it exits. Stop the server if this process exits first.

    `on_ready` is called when the server is ready. Raise the same errors as `launch`, but return
    normally if the server is stopped before it is ready. Also raise `LaunchFailed` if the server
    fails after it has become ready, or if the supervisor exits unexpectedly.
    """
    with contextlib.ExitStack() as until_ready:
        until_ready.enter_context(_prepared(plan))
        supervisor = _spawn_supervisor(plan.directory, is_attached=True)
        with _stop_on_error(supervisor):
            state = _wait(plan, supervisor, lambda loading: None)
            until_ready.close()
            if state.phase == "ready":
                on_ready()
            supervisor.wait()
    last = read_state(plan.directory)
    if last is not None and last.phase == "failed":
        raise _failure_of(plan, last)
    # The supervisor exits with code 0 after a stop request, and does not record its own crash.
    if code := supervisor.returncode:
        raise _supervisor_exited(plan, "while the server was running", describe_exit(code))


@contextlib.contextmanager
def _prepared(plan: LaunchPlan) -> Iterator[None]:
    """Write the server's folder for `plan` and hold the server's start lock.

    The lock prevents other processes from starting the same server. Raise `LaunchFailed` if the
    server already exists, is being started, or may be running on another machine. Also raise the
    errors of `check_ports` and `write_combination`.
    """
    import filelock

    remove_stale_container(plan.directory)
    _wait_for_died_server(plan.directory)
    servers = plan.directory.parent
    ports_lock = servers.with_name("locks") / "ports.lock"
    make_folder(ports_lock.parent)
    try:
        with contextlib.ExitStack() as until_started:
            # Hold the lock until the plan is written. If two starts use the same port, the second
            # start must find the plan of the first start.
            with filelock.FileLock(ports_lock):
                _check_not_supervised(plan)
                _check_ports(plan, _find_reserved_ports(plan))
                plan.directory.mkdir(parents=True, exist_ok=True)
                # Deny access to other users, because the folder contains the token for the
                # restricted APIs.
                plan.directory.chmod(0o700)
                until_started.enter_context(
                    filelock.FileLock(plan.directory / START_LOCK, timeout=0)
                )
                _write_folder(plan)
            yield
    except filelock.Timeout as error:
        raise _already_exists(plan, "another tllm process is starting the server") from error


def _wait_for_died_server(directory: Path) -> None:
    """Wait until a server whose supervisor was killed has released its ports and its memory.

    The kernel and the reaper end such a server within seconds. Wait up to `_DIED_SERVER_S`.
    """
    state = read_state(directory)
    if state is None or state.server_pid is None or not state.has_own_process_ids:
        return
    deadline_s = time.monotonic() + _DIED_SERVER_S
    while not state.is_supervised and list_session(state.server_pid):
        if time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)


def _check_ports(plan: LaunchPlan, reserved: Mapping[int, str]) -> None:
    """Check the ports of the server and its gateway. Raise the errors of `check_ports`."""
    ports = plan.every_port
    gateway_ports = {} if plan.gateway is None else {"OpenAI": ports.pop("OpenAI")}
    check_ports(plan.host, ports, reserved)
    if plan.gateway is not None:
        check_ports(plan.gateway.host, gateway_ports, reserved, host_option="--openai-host")


def _find_reserved_ports(plan: LaunchPlan) -> dict[int, str]:
    """Map each port of a server that is starting or restarting to a description of the server.

    Skip the server of `plan` and servers that bind a different address.
    """
    reserved: dict[int, str] = {}
    for path in plan.directory.parent.glob(f"*/{PLAN_FILE}"):
        phase, other = _find_loading_phase(path.parent), read_plan(path.parent)
        if phase is None or other is None or path.parent == plan.directory:
            continue
        if other.host == plan.host or "0.0.0.0" in (other.host, plan.host):
            owner = f"the server for {' and '.join(other.models)}, which is {phase},"
            reserved |= dict.fromkeys(other.every_port.values(), owner)
    return reserved


def _find_loading_phase(directory: Path) -> str | None:
    """Return the phase of the server in `directory` if the server is loading, otherwise None.

    The phase of a loading server is "starting" or "restarting". A server that is not running counts
    as starting if another process holds its start lock.
    """
    with contextlib.suppress(NoServer):
        server = read_server(directory)
        if server.is_running:
            return server.phase if server.phase in ("starting", "restarting") else None
    with try_lock(directory / START_LOCK) as is_free:
        return None if is_free else "starting"


def _check_not_supervised(plan: LaunchPlan) -> None:
    """Raise `LaunchFailed` if the server already exists or may be running elsewhere.

    A starting server may exist although its ports are still free.
    """
    state = read_state(plan.directory)
    if state is not None and state.is_elsewhere:
        raise LaunchFailed(
            f"A server with HTTP port {plan.ports['HTTP']} may be running {state.place}.",
            why=f"both servers would use the shared folder {plan.directory}",
            next_step="run `tllm stop` in that container, or choose another port with --http-port N"
            if state.is_in_other_container
            else f"run `tllm stop` on {state.host}, choose another port with --http-port N, or run "
            f"`rm -r {shlex.quote(str(plan.directory))}` if {state.host} no longer exists",
        )
    if state is not None and state.is_supervised:
        earlier = read_plan(plan.directory)
        models = () if earlier is None else earlier.models
        server = f"the server for {' and '.join(models)}" if models else "the server"
        raise _already_exists(
            plan,
            f"{server} is {state.phase}, and its supervisor has process ID {state.supervisor_pid}",
            is_usable=models == plan.models and state.phase != "stopping",
        )


def _already_exists(plan: LaunchPlan, why: str, *, is_usable: bool = False) -> LaunchFailed:
    address = plan.endpoint.http
    next_step = (
        f"run `tllm infer` to use the server, run `tllm restart -u {address}` to apply changes"
        if is_usable
        else f"run `tllm stop -u {address}`"
    )
    return LaunchFailed(
        f"A server with HTTP port {plan.ports['HTTP']} already exists.",
        why=why,
        next_step=f"{next_step}, or choose another port with --http-port N",
    )


def _write_folder(plan: LaunchPlan) -> None:
    if (earlier := read_plan(plan.directory)) is not None:
        remove_regions(earlier.region_prefix)
    reset_state_files(plan.directory)
    (plan.directory / KEYS_MARKER).unlink(missing_ok=True)
    plan.log.write_bytes(b"")
    plan.gateway_log.write_bytes(b"")
    if plan.combined:
        write_combination(plan.combined, plan.repository)
    for relative, target in plan.backends.items():
        link = plan.directory / relative
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    gateway = "" if plan.gateway is None else plan.gateway.to_json()
    for name, text in (
        (PLAN_FILE, plan.to_json()),
        (TOKEN_FILE, f"{plan.endpoint.restricted_token}\n"),
        (CONFIG_FILE, gateway),
    ):
        path = plan.directory / name
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")


def _failure_of(plan: LaunchPlan, state: ServerState) -> LaunchFailed:
    """Return the error for a server that failed, or that was stopped before it became ready.

    For a failed server, the error contains the causes from the server's log. If another process is
    using one of the server's ports, raise the error of `_check_ports` instead.
    """
    from trtllm_serve_cli.build.explain import explain_failure

    if state.phase == "stopped":
        return LaunchFailed(
            f"The server for {', '.join(plan.models)} was stopped before it was ready.",
            why="the server received a stop request, for example from `tllm stop`",
            next_step=f"run `tllm start -m {' -m '.join(plan.models)}`",
        )
    if any("already in use" in line for line in state.why):
        # Another process opened the port while the server was starting. `_check_ports` raises an
        # error that names the process.
        _check_ports(plan, {})
    why = state.why or tuple(last_lines(plan.log, 5))
    known_failure = explain_failure(state.exit_code or 1, why, among=_ENGINE_FAILURES)
    next_step = _suggest_checks(plan, state, why)
    if known_failure is not None:
        why = (*why, f"cause: {known_failure.why}")
        next_step = known_failure.next_step
    # A server that was ready fails permanently only after several consecutive restarts have failed.
    was_ready = state.ready_at is not None
    outcome = "failed and did not become ready again" if was_ready else "did not become ready"
    return LaunchFailed(
        f"The server for {', '.join(plan.models)} {outcome}.",
        why="\n       ".join(why),
        next_step=f"{next_step}; the full log is {plan.log}",
    )


def _supervisor_exited(plan: LaunchPlan, when: str, how: str) -> LaunchFailed:
    """Return the error for a supervisor that exited unexpectedly.

    The error contains the last lines of the supervisor's log, or `how` it exited if the log is
    empty.
    """
    why = "\n       ".join(last_lines(plan.directory / "supervisor.log", 5))
    return LaunchFailed(
        f"The server's supervisor exited {when}.",
        why=why or f"it {how}",
        next_step="run the command again, and report a bug if the supervisor exits again",
    )


def _suggest_checks(plan: LaunchPlan, state: ServerState, why: Sequence[str]) -> str:
    """Return the next step after a failure that `explain_failure` does not recognize.

    `why` contains the lines that describe the failure.
    """
    if is_option_rejected(last_lines(plan.log, 400)):
        return "correct the tritonserver options after --"
    if not any(line.startswith(f"{model}: ") for line in why for model in plan.loading):
        return _suggest_checks_of_machine(plan, state)
    served = list(zip(plan.repositories, plan.models, strict=False))
    checks = " and ".join(f"`tllm validate {target_of(*each)}`" for each in served)
    imports = " and ".join(f"`{command_to_import_again(*each)} --force`" for each in served)
    return (
        f"run {checks} to check the model repository, {imports} to rebuild the engine, or "
        "`tllm doctor` to check this machine"
    )


def _suggest_checks_of_machine(plan: LaunchPlan, state: ServerState) -> str:
    """Return the next step after a failure that is not caused by a model."""
    if state.exit_code is not None:
        return "search the log for the first error, and check this machine with `tllm doctor`"
    # Triton did not exit. Either the start timed out, the gateway exited, or Triton could not be
    # started.
    if any(line.startswith("the server was not ready after") for line in state.why):
        return f"allow more time, for example with --timeout {2 * plan.timeout_s:g}"
    if any(line.startswith("the OpenAI-compatible gateway ") for line in state.why):
        log = plan.gateway_log
        return f"read the gateway's log ({log}), or add --no-openai to start without the gateway"
    return "check this machine with `tllm doctor`"


def _spawn_supervisor(directory: Path, *, is_attached: bool = False) -> subprocess.Popen[bytes]:
    """Start the supervisor as a separate process.

    If `is_attached` is set, the supervisor stops gracefully when this process ends.
    """
    command = (
        sys.executable,
        "-m",
        "trtllm_serve_cli.launch.supervisor",
        str(directory),
    )
    with (directory / "supervisor.log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            # Use a separate session, so that only this process receives Ctrl-C. This process then
            # stops the supervisor.
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, signal.SIGTERM) if is_attached else None,
        )


@contextlib.contextmanager
def _stop_on_error(supervisor: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        supervisor.terminate()
        supervisor.wait()
        raise


def _wait(
    plan: LaunchPlan,
    supervisor: subprocess.Popen[bytes],
    on_progress: Callable[[Sequence[str]], None],
) -> ServerState:
    """Wait until the server is ready, fails or is stopped, and return its state.

    The supervisor enforces the timeout. Raise `LaunchFailed` if the supervisor exits without
    recording the phase "ready", "failed" or "stopped".
    """
    while True:
        state = read_state(plan.directory)
        if state is not None and state.phase in ("ready", "failed", "stopped"):
            return state
        if (code := supervisor.poll()) is not None and read_state(plan.directory) == state:
            how = describe_exit(code)
            why = how if state is not None else f"{how} without a readable state"
            raise _supervisor_exited(plan, "before the server was ready", why)
        on_progress(find_loading(last_lines(plan.log, 400), plan.loading))
        time.sleep(_POLL_S)
