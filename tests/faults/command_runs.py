"""Run `tllm` in a forked child process, with a fault in one of its file operations.

A forked child inherits all modules and tables of this process, so a run takes milliseconds. A
killed child leaves the same files as a killed command.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import secrets
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import NoReturn

import pytest

from tests.faults.file_operations import Operation, Place, PlaceFinder, fail, read_operations, watch
from trtllm_serve_cli.cli.main import main


@dataclass(frozen=True)
class Run:
    """The exit code (a negative signal number if killed), the output, and the file operations."""

    code: int
    output: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Machine:
    """A TLLM_HOME, the user's files, a folder for records, and the interpreter of commands."""

    home: Path
    sources: Path
    scratch: Path
    interpreter: Path

    def warm_up(self, *arguments: str) -> None:
        """Run a command in this process, to load the modules and tables that it uses."""
        with self._command(arguments), contextlib.suppress(SystemExit):
            main()

    def run(
        self, *arguments: str, fault: str = "", at: Place | None = None,
        environ: Mapping[str, str] = {},
    ) -> Run:  # fmt: skip
        """Run a command to its end, or until its operation `at` fails."""
        output, record = self.scratch / "output", self.scratch / "operations"
        if (pid := os.fork()) == 0:
            os.environ.update(environ)
            self._run_child(arguments, output, record, fault, at)
        _, status = os.waitpid(pid, 0)
        code, operations = os.waitstatus_to_exitcode(status), read_operations(record)
        return Run(code, output.read_text(), tuple(operations))

    def _run_child(
        self, arguments: tuple[str, ...], output: Path, record: Path, fault: str, at: Place | None
    ) -> NoReturn:
        code = 1
        gc.disable()  # a collection would copy the memory that this process shares with its parent
        try:
            written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(written, 1)
            os.dup2(written, 2)
            sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
            with self._command(arguments):
                self._watch(record, fault, at)
                main()
        except SystemExit as left:
            code = int(left.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    @contextlib.contextmanager
    def _command(self, arguments: tuple[str, ...]) -> Iterator[None]:
        """Set the command line, and make two runs of the command write the same files."""
        find, runtime = resources.files, self.scratch / "runtime"
        with pytest.MonkeyPatch.context() as patch, open(os.devnull) as nothing:  # noqa: PTH123
            patch.setattr(sys, "argv", ["tllm", *arguments])
            patch.setattr(sys, "stdin", nothing)
            patch.setattr(sys, "executable", str(self.interpreter))
            patch.setattr(time, "time", lambda: 1_800_000_000.0)
            patch.setattr(secrets, "token_urlsafe", lambda num_bytes=32: "k" * num_bytes)
            # Use a runtime with few files, so that the repositories are small.
            patch.setattr(
                resources,
                "files",
                lambda name: runtime if name.endswith(".runtime") else find(name),
            )
            yield

    def _watch(self, record: Path, fault: str, at: Place | None) -> None:
        lines = record.open("w", buffering=1)
        find_place = PlaceFinder()

        def on_operation(operation: Operation, data: bytes, fd: int) -> None:
            lines.write(json.dumps(asdict(operation)) + "\n")
            if find_place(operation) == at:
                fail(fault, operation, data, fd)

        watch((self.home, self.sources), on_operation)
