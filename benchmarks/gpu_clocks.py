"""Sample the power, the clocks and the temperature of the GPUs while a part of the check runs."""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections.abc import Callable, Iterator
from typing import Any

from trtllm_serve_cli.processes import run_captured

_FIELDS = ("clocks.sm", "power.draw", "temperature.gpu", "utilization.gpu")
_COMMAND = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_PERIOD_S = 1.0
_TIMEOUT_S = 10.0
# In percent. Other samples are from starts and pauses, when the clock and the power are lower.
_BUSY = 90.0

Sample = tuple[float, ...]


def parse_samples(table: str) -> list[Sample]:
    """Return a sample for each GPU in nvidia-smi's output. Skip GPUs that lack a value."""
    samples = []
    for line in table.splitlines():
        with contextlib.suppress(ValueError):
            samples.append(tuple(float(cell) for cell in line.split(",")))
    return [sample for sample in samples if len(sample) == len(_FIELDS)]


def summarize(samples: list[Sample]) -> dict[str, Any]:
    """Return the minimum, median and maximum of each field over the samples of busy GPUs."""
    busy = [sample for sample in samples if sample[-1] >= _BUSY]
    names = ("sm_clock_mhz", "power_w", "temperature_c")
    columns = dict(zip(names, zip(*busy, strict=True), strict=False))
    return {
        "num_samples": len(samples),
        "num_busy": len(busy),
        **{
            name: {"min": min(values), "p50": statistics.median(values), "max": max(values)}
            for name, values in columns.items()
        },
    }


@contextlib.contextmanager
def watching_gpus() -> Iterator[Callable[[], dict[str, Any]]]:
    """Sample all GPUs about once per second. Yield a function that summarizes the samples."""
    samples: list[Sample] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_PERIOD_S):
            found = run_captured(_COMMAND, _TIMEOUT_S)
            if found is None:  # the machine has no GPU
                return
            samples.extend(parse_samples(found.out))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: summarize(samples)
    finally:
        is_over.set()
        thread.join()
