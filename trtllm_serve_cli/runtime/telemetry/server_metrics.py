"""Publish the server state, as recorded by the supervisor, on Triton's metrics page.

Only the first instance of the model `$TLLM_STATE_PUBLISHER` publishes these metrics, because Triton
adds up the counters of all processes. The supervisor's record is in the folder
`$TLLM_STATE_FOLDER`. The supervisor sets both variables if Triton loads a text model at startup. If
Triton runs in a container, neither variable is set in the container.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .families import SERVER_FAMILIES, SERVER_HANGS, SERVER_READY, SERVER_RESTARTS
from .server_status import read_server_status

STATE_FOLDER = "TLLM_STATE_FOLDER"
STATE_PUBLISHER = "TLLM_STATE_PUBLISHER"


class ServerMetrics:
    """The Triton metrics for a server's state.

    `pb_utils` is the `triton_python_backend_utils` module. `directory` is the folder with the
    supervisor's record.
    """

    def __init__(self, pb_utils: Any, directory: Path) -> None:
        types = {"gauge": pb_utils.MetricFamily.GAUGE, "counter": pb_utils.MetricFamily.COUNTER}
        self._families = {
            family: pb_utils.MetricFamily(
                name=family.name, description=family.help, kind=types[family.type]
            )
            for family in SERVER_FAMILIES
        }
        self._metrics = {
            family: pb_family.Metric(labels={}) for family, pb_family in self._families.items()
        }
        self._published = dict.fromkeys(SERVER_FAMILIES, 0)
        self._directory = directory

    def publish(self) -> None:
        """Read the supervisor's record and update the metrics whose values have changed.

        Publish nothing if the record is missing or invalid.
        """
        if (status := read_server_status(self._directory)) is None:
            return
        counts = {SERVER_HANGS: status.num_hangs, SERVER_RESTARTS: status.num_restarts}
        for family, count in counts.items():
            if grown := count - self._published[family]:
                self._metrics[family].increment(grown)
                self._published[family] = count
        if status.is_ready != self._published[SERVER_READY]:
            self._metrics[SERVER_READY].set(int(status.is_ready))
            self._published[SERVER_READY] = int(status.is_ready)

    def close(self) -> None:
        """Release all metrics. Call this method while Triton is still running."""
        self._metrics.clear()
        self._families.clear()


def open_server_metrics(
    pb_utils: Any, model: str, instance: int, environ: Mapping[str, str]
) -> ServerMetrics | None:
    """Return the server metrics, or None if this instance of `model` does not publish them."""
    folder = environ.get(STATE_FOLDER)
    if folder is None or instance or environ.get(STATE_PUBLISHER) != model:
        return None
    return ServerMetrics(pb_utils, Path(folder))
