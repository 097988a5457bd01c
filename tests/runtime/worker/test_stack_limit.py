"""Test that child processes get the stack limit from before `tllm start` raised it."""

from __future__ import annotations

import resource
import subprocess
import sys

# Raises the limit as `tllm start` does for Triton, and prints the limit of a child process.
STUB = """
import resource, subprocess, sys
from trtllm_serve_cli.runtime.worker.stack_limit import restore_stack_limit
restore_stack_limit()
show = "import resource; print(resource.getrlimit(resource.RLIMIT_STACK)[0])"
subprocess.run((sys.executable, "-c", show), check=True)
"""


def run_stub(**environ: str) -> int:
    def raise_limit() -> None:
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (64 << 20, hard))

    return int(
        subprocess.run(
            (sys.executable, "-c", STUB),
            env=environ,
            preexec_fn=raise_limit,
            check=True,
            capture_output=True,
            timeout=60,
        ).stdout
    )


def test_limit_is_restored() -> None:
    assert run_stub(TLLM_STACK_BYTES=str(8 << 20)) == 8 << 20


def test_limit_is_kept_without_the_variable() -> None:
    assert run_stub() == 64 << 20
