"""Query a running server's models, GPUs and requests in flight."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.server import IndexedModel, fetch_index
from trtllm_serve_cli.errors import NoServer, TllmError
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics
from trtllm_serve_cli.metrics.summary import GpuRow, Summary, summarize

if TYPE_CHECKING:
    # Supervisors start faster without Slurm jobs, which this module imports.
    from trtllm_serve_cli.launch.servers.running import RunningServer

# Timeout for status queries. It is short, so that a starting or stopping server does not delay the
# caller.
_TIMEOUT_S = 2.0
# Timeout for counting requests in flight. It is longer than `_TIMEOUT_S`, because the caller waits
# for the requests to finish anyway.
IN_FLIGHT_TIMEOUT_S = 5.0


def read_model_states(server: RunningServer) -> tuple[IndexedModel, ...]:
    """Return the state of each Triton model.

    Return an empty tuple if the server does not respond.
    """
    try:
        return fetch_index(server.endpoint, _TIMEOUT_S)
    except TllmError:
        return ()


def read_gpu_status(server: RunningServer) -> tuple[GpuRow, ...]:
    """Return the status of each GPU from Triton's metrics.

    Return an empty tuple if the server does not respond.
    """
    try:
        return _summarize(server.endpoint, _TIMEOUT_S).host.gpus
    except TllmError:
        return ()


def watch_in_flight(
    endpoints: Sequence[Endpoint],
    engines: Collection[str] | None = None,
    timeout_s: float = IN_FLIGHT_TIMEOUT_S,
) -> Iterator[dict[str, int] | None]:
    """Yield the results of `count_in_flight` until two consecutive counts are zero.

    A single count may miss a request that has arrived but has not reached the engine yet. The
    caller must pause between the results.
    """
    num_idle = 0
    while num_idle < 2:
        counts = count_in_flight(endpoints, engines, timeout_s)
        num_idle = num_idle + 1 if counts == {} else 0
        yield counts


def count_in_flight(
    endpoints: Sequence[Endpoint],
    engines: Collection[str] | None = None,
    timeout_s: float = IN_FLIGHT_TIMEOUT_S,
) -> dict[str, int] | None:
    """Count the requests in flight for each engine that is not idle.

    If `engines` is set, count only the requests in `engines`. Ignore engines whose worker has died.
    A server that refuses connections has no requests in flight. Return None if the metrics of a
    server cannot be read for another reason, for example a timeout, and no other server reports
    requests.
    """
    counts: dict[str, int] = {}
    is_known = True
    for endpoint in endpoints:
        try:
            rows = _summarize(endpoint, timeout_s).engines
        except TllmError as error:
            is_known = is_known and _is_refused(error)
            continue
        for row in rows:
            # Ignore dead workers, because their metrics are stale.
            is_counted = row.is_worker_up is not False and (engines is None or row.model in engines)
            if row.num_active and is_counted:
                counts[row.model] = counts.get(row.model, 0) + row.num_active
    return counts if counts or is_known else None


def _is_refused(error: TllmError) -> bool:
    reason = getattr(error.__cause__, "reason", None)
    return isinstance(error, NoServer) and isinstance(reason, ConnectionRefusedError)


def _summarize(endpoint: Endpoint, timeout_s: float) -> Summary:
    return summarize(parse_metrics(fetch_metrics(endpoint.metrics, timeout_s), 0.0))
