"""Measure a process's startup stages and format them as log fields.

The server's supervisor reads the fields from the log. Users can also read the fields in the logs of
containers and cluster jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

WORKER_READY = "the engine worker is ready"
GATEWAY_READY = "the gateway can serve the model"


class StageTimer:
    """Measures the durations of consecutive stages.

    `durations_s` maps the names of completed stages to their durations in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin_s = clock()
        self.durations_s: dict[str, float] = {}

    def end(self, stage: str) -> None:
        """End the current stage, record it as `stage`, and begin the next one.

        The durations of stages with the same name are added up.
        """
        now_s = self._clock()
        self.durations_s[stage] = self.durations_s.get(stage, 0.0) + now_s - self._begin_s
        self._begin_s = now_s


def stage_fields(started_at: float, durations_s: Mapping[str, float]) -> dict[str, Any]:
    """Return the log fields for startup stages.

    `started_at` is the start time of the first stage, in seconds since the epoch.
    """
    started = datetime.fromtimestamp(started_at, timezone.utc)
    return {
        "started_at": started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        **{f"{stage}_s": round(each, 3) for stage, each in durations_s.items()},
    }
