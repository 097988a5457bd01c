"""Measure how long a server takes to start, without and with vLLM's compile cache.

vLLM compiles the model when it is loaded for the first time, and stores the result in
`VLLM_CACHE_ROOT`. Two starts use a new folder: the first one fills it, and the second one reads it.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

from gpu_check import Check
from gpu_served import import_checkpoint, launched

_VARIABLE = "VLLM_CACHE_ROOT"


def check_ready(check: Check) -> dict[str, Any]:
    """Measure the time from the launch until the server has generated a token."""
    folder = check.work / "compile-cache"
    shutil.rmtree(folder, ignore_errors=True)
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(folder)
    found: dict[str, Any] = {}
    try:
        import_checkpoint(check, check.big)
        for name in ("cold_s", "warm_s"):
            started_s = time.perf_counter()
            with launched(check):
                found[name] = time.perf_counter() - started_s
            check.found["ready"] = found
            check.save()
    finally:
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before
    return found
