"""What a running server says of itself, for whoever asks how it is."""

from __future__ import annotations

from collections.abc import Iterable

from trtllm_serve_cli.client import Endpoint, IndexedModel, fetch_index
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.launch.running import RunningServer
from trtllm_serve_cli.metrics import GpuRow, Summary, fetch_metrics, parse_metrics, summarize

# A server that is busy starting or ending must not hold up whoever looks.
_TIMEOUT_S = 2.0
# Whoever waits for requests to end has the time.
_PATIENCE_S = 5.0


def look_at_models(server: RunningServer) -> tuple[IndexedModel, ...]:
    """Triton's models, loaded or not; none where the server does not say."""
    try:
        return fetch_index(server.endpoint, _TIMEOUT_S)
    except TllmError:
        return ()


def look_at_gpus(server: RunningServer) -> tuple[GpuRow, ...]:
    """The GPUs that Triton reports on its metrics page."""
    try:
        return _summarize(server.endpoint, _TIMEOUT_S).host.gpus
    except TllmError:
        return ()


def count_in_flight(endpoints: Iterable[Endpoint]) -> dict[str, int]:
    """Engine -> requests that it has, of those that have any; a server that is silent has none."""
    counts: dict[str, int] = {}
    for endpoint in endpoints:
        try:
            engines = _summarize(endpoint, _PATIENCE_S).engines
        except TllmError:
            continue
        for engine in engines:
            # The figures of a worker that died are those that it had.
            if engine.num_active and engine.is_worker_up is not False:
                counts[engine.model] = counts.get(engine.model, 0) + engine.num_active
    return counts


def _summarize(endpoint: Endpoint, timeout_s: float) -> Summary:
    return summarize(parse_metrics(fetch_metrics(endpoint.metrics, timeout_s), 0.0))
