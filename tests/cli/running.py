"""Run `tllm` as a user does, in this process or in its own."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from trtllm_serve_cli.cli.main import main

# Runs one command in this process, and returns its exit code, stdout and stderr.
Run = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True)
class Tllm:
    """Runner of `tllm` in this process, which returns its exit code, stdout and stderr."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(
        self, *arguments: str, stdin: str = "", is_terminal: bool = False
    ) -> tuple[int, str, str]:
        typed = io.StringIO(stdin)
        self.monkeypatch.setattr(typed, "isatty", lambda: is_terminal)
        self.monkeypatch.setattr(sys, "argv", ["tllm", *arguments])
        self.monkeypatch.setattr(sys, "stdin", typed)
        with pytest.raises(SystemExit) as left:
            main()
        return (int(left.value.code or 0), *self.capsys.readouterr())


def run_apart(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `tllm` in its own process."""
    command = (sys.executable, "-m", "trtllm_serve_cli.cli.main", *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False)
