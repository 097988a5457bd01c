"""Run a server as a child process of the supervisor.

For a server in a container, the child process is the attached docker or podman client. The client
forwards SIGTERM to the container.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess

import psutil

from trtllm_serve_cli.containers.container_engine import find_first_process, remove_container
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.supervisor.server_processes import (
    Parts,
    find_tritons,
    kill_remains,
    list_tree,
    send_signal,
    wait_until_dead,
    wait_until_gone,
)
from trtllm_serve_cli.launch.supervisor.spawn import spawn_server

# Time limit, in seconds, for `mpirun` to exit after SIGTERM. `mpirun` first gives its ranks one
# second to exit.
_MPIRUN_EXIT_S = 5.0
# Time limit, in seconds, for `mpirun` to exit after a rank has died. `mpirun` gives the other ranks
# one second to exit, and then logs which rank died.
_MPIRUN_ABORT_S = 4.0
# Time limit, in seconds, for a container's first process to exit after another process in the
# container has died. When a container ends, its processes are killed in no particular order, so the
# first process may be the last to exit.
_CONTAINER_END_S = 2.0
# Time limit, in seconds, for the attached docker or podman client to exit after its container has
# exited. On a busy machine, the client can take several seconds to exit.
_ATTACHED_END_S = 20.0


class ServerChild:
    """The child process of one run: Triton, `mpirun`, or the docker or podman client.

    `log_start` is the byte offset in the server's log at which the process output starts.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        """Start the process. Raise `OSError` if its log or its program cannot be opened."""
        self._plan = plan
        self._child, self.log_start = spawn_server(plan)
        self._first_pid: int | None = None

    @property
    def pid(self) -> int:
        """The process ID of the child process."""
        return self._child.pid

    def find_first_pid(self) -> int:
        """Return the process ID of the container's first process.

        Return the child process ID if the server does not run in a container, or while the
        container engine does not report the container's first process.
        """
        if self._first_pid is None and self._plan.container is not None:
            self._first_pid = find_first_process(self._plan.container)
        return self._first_pid or self.pid

    def find_exit_code(self) -> int | None:
        """Return the exit code of the child process, or None while it is running.

        If a signal ended the process, the code is the negated signal number.
        """
        code = self._child.poll()
        # If a signal ended the container, the client's exit code is 128 plus the signal's number.
        # Convert the code to the negated signal number, as in the `subprocess` module.
        if code is not None and code > 128 and self._plan.container is not None:
            return 128 - code
        return code

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the child process to exit. Return whether it has exited."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)
            return True
        return False

    def list_processes(self) -> list[psutil.Process]:
        """Return the child process and its descendants."""
        return [psutil.Process(self.pid), *list_tree(self.pid)]

    def has_ended_after_death(self) -> bool:
        """Return whether the container and its attached client have ended after a process died.

        Return False if the server does not run in a container. If `mpirun` started the server,
        first wait up to 4 seconds, so that `mpirun` can log which rank died. Then wait up to 2
        seconds for the container and up to 20 seconds for the client, which exits with the
        container's exit code.
        """
        if self._plan.runs_mpirun:
            self.wait(_MPIRUN_ABORT_S)
        if self._plan.container is None:
            return False
        return wait_until_gone(self._first_pid or self.pid, _CONTAINER_END_S) and self.wait(
            _ATTACHED_END_S
        )

    def end(self, parts: Parts, exit_s: float, *, is_graceful: bool) -> None:
        """Stop the server with SIGTERM if `is_graceful` is set, otherwise with SIGKILL.

        Kill the server if it does not exit within `exit_s` seconds. `parts` are the processes that
        the server requires. If `_has_no_work_at_exit` permits it, a graceful stop kills Triton when
        all `parts` have ended or `exit_s` has elapsed.
        """
        self._signal_tritons(signal.SIGTERM if is_graceful else signal.SIGKILL)
        if is_graceful and parts and _has_no_work_at_exit(self._plan):
            wait_until_dead(parts, exit_s)
            self._child.kill()
        if not self.wait(exit_s):
            self._kill()

    def remove_remains(self, tree: list[psutil.Process]) -> None:
        """Kill the remaining processes of `tree` and the session, and remove the container."""
        kill_remains(self.pid, tree)
        remove_container_of(self._plan)

    def _kill(self) -> None:
        """Kill the server. Terminate `mpirun` first, so that ranks on other nodes also exit."""
        if self._plan.runs_mpirun:
            self._child.terminate()
            self.wait(_MPIRUN_EXIT_S)
        self._child.kill()
        self._child.wait()

    def _signal_tritons(self, number: signal.Signals) -> None:
        """Send a signal to all Triton processes.

        Do not signal `mpirun`, because it would kill its ranks after one second. Instead of sending
        SIGKILL to a container, remove the container. If Triton runs in a container without
        `mpirun`, or if no Triton process can be signalled, signal the child process.
        """
        if self._plan.container is not None and number == signal.SIGKILL:
            # Remove the container, because killing the attached client with SIGKILL does not stop
            # the container.
            remove_container_of(self._plan)
            return
        tritons: list[psutil.Process] = []
        if self._plan.container is None or self._plan.runs_mpirun:
            with contextlib.suppress(psutil.Error):
                tritons = find_tritons(self._plan, self.find_first_pid())
        signalled = [triton for triton in tritons if send_signal(triton, number)]
        if not signalled:
            self._child.send_signal(number)


def remove_container_of(plan: LaunchPlan) -> None:
    """Remove the server's container if it exists."""
    if plan.container is not None:
        remove_container(plan.container)


def _has_no_work_at_exit(plan: LaunchPlan) -> bool:
    """Return whether it is safe to kill Triton once its model processes have exited.

    It is safe only in local mode, where Triton 2.51 just waits for timers at that point, for up to
    two seconds. It is not safe with tracing, because Triton writes the traces when it exits.
    """
    return plan.mode == "local" and not any(word.startswith("--trace-config") for word in plan.argv)
