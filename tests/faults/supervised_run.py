"""Run a supervisor with a fake Triton in a forked child, with a fault in one file operation."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import traceback
from pathlib import Path
from typing import NoReturn

from tests.faults.file_operations import Operation, Place, PlaceFinder, fail, read_operations, watch
from tests.samples.launch_plans import fake_plan, pids_in
from tests.waiting import is_gone
from trtllm_serve_cli.launch.server_state import ServerState, read_state, reset_state_files
from trtllm_serve_cli.launch.supervisor.supervisor import Supervisor, SupervisorLimits

QUICK = SupervisorLimits(poll_s=0.05, watch_s=0.05, exit_s=5.0)


class SupervisedRun:
    """A supervisor that receives a stop request as soon as its server is ready.

    `place` is the operation that fails with `fault`, or None. Several runs may overlap.
    """

    def __init__(self, folder: Path, fault: str = "", place: Place | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.fault, self.place = fault, place
        self._plan = fake_plan(folder)
        self._output, self._record = folder / "output", folder / "operations"
        self._wait_status: int | None = None
        self._is_stop_requested = False
        self.was_ready = False
        self._start()

    def start_again(self) -> None:
        """Run the supervisor again in the same folder, without a fault."""
        self.fault, self.place = "", None
        self._wait_status, self._is_stop_requested, self.was_ready = None, False, False
        self._start()

    def _start(self) -> None:
        directory = self._plan.directory
        directory.mkdir(parents=True, exist_ok=True)
        reset_state_files(directory)
        self._plan.log.write_bytes(b"")
        self._output.unlink(missing_ok=True)
        if (pid := os.fork()) == 0:
            self._run_child()
        self._pid = pid

    def has_ended(self) -> bool:
        """Return whether the supervisor has ended. Request a stop if its server is ready."""
        if self._wait_status is None:
            state = self.state
            if not self._is_stop_requested and state is not None and state.phase == "ready":
                self._is_stop_requested = self.was_ready = True
                os.kill(self._pid, signal.SIGTERM)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._wait_status = status if pid else None
        return self._wait_status is not None

    def kill(self) -> None:
        """Kill the supervisor if it is running."""
        if self._wait_status is None:
            os.kill(self._pid, signal.SIGKILL)
            _, self._wait_status = os.waitpid(self._pid, 0)

    @property
    def code(self) -> int:
        """The exit code, or a negative signal number if the supervisor was killed."""
        assert self._wait_status is not None
        return os.waitstatus_to_exitcode(self._wait_status)

    @property
    def state(self) -> ServerState | None:
        return read_state(self._plan.directory)

    @property
    def has_damaged_state(self) -> bool:
        """True if the file with the state exists, but is not valid."""
        return (self._plan.directory / "state.json").exists() and self.state is None

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def operations(self) -> list[Operation]:
        """The file operations in the server's folder, with paths relative to it."""
        return read_operations(self._record)

    @property
    def files(self) -> set[str]:
        """The paths of the files and folders in the server's folder."""
        directory = self._plan.directory
        return {str(path.relative_to(directory)) for path in directory.rglob("*")}

    @property
    def left_pids(self) -> list[int]:
        """The processes of the server that are still running."""
        return [pid for pid in pids_in(self._plan.log) if not is_gone(pid)]

    def _run_child(self) -> NoReturn:
        code = 1
        gc.disable()
        try:
            os.chdir(self._plan.directory.parent)
            written = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(written, 1)
            os.dup2(written, 2)
            self._watch()
            supervisor = Supervisor(self._plan, QUICK)
            signal.signal(signal.SIGTERM, lambda *_: supervisor.stop())
            code = 0 if supervisor.run() else 1
        except BaseException:
            os.write(1, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _watch(self) -> None:
        lines = self._record.open("w", buffering=1)
        find_place = PlaceFinder()
        root = self._plan.directory

        def on_operation(operation: Operation, data: bytes, fd: int) -> None:
            lines.write(json.dumps(dataclasses.asdict(operation)) + "\n")
            if find_place(operation) == self.place:
                fail(self.fault, operation, data, fd)

        watch((root,), on_operation)
