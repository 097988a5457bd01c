"""What our models and workers write to the server's log."""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path
from typing import Literal

# This file lies in MODEL/VERSION/tllm_runtime, also of a worker that the model starts.
_MODEL = Path(__file__).parent.parent.parent.name


def write_log(level: Literal["I", "W", "E"], text: str) -> None:
    """A line for the log: how grave (Triton's letters), of which model, and what is said.

    A log that cannot be written, such as on a full disk, keeps nobody from working.
    """
    with contextlib.suppress(OSError, ValueError):
        print(f"{level} {_MODEL}] {text}", file=sys.stderr, flush=True)


def write_traceback() -> None:
    """The exception that is being handled, for the log."""
    write_log("E", traceback.format_exc().rstrip())
