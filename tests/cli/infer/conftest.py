"""Provide a fake Triton and a runner of `tllm infer` as fixtures."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from tests.cli.running import Run
from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.cli.main import main


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        yield fake


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `tllm infer`: exit code, stdout and stderr."""

    def run_infer(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tllm", "infer", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as left:
            main()
        return (int(left.value.code or 0), *capsys.readouterr())

    return run_infer
