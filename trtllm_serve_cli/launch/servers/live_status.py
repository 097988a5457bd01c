"""What a running server says of itself, for whoever asks how it is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.server import IndexedModel, fetch_index
from trtllm_serve_cli.errors import NoServer, TllmError
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics
from trtllm_serve_cli.metrics.summary import GpuRow, Summary, summarize

# A server that is busy starting or ending must not hold up whoever looks.
_TIMEOUT_S = 2.0
# A caller that waits for requests to end has more time.
IN_FLIGHT_TIMEOUT_S = 5.0


def read_model_states(server: RunningServer) -> tuple[IndexedModel, ...]:
    """Triton's models, loaded or not; none where the server does not say."""
    try:
        return fetch_index(server.endpoint, _TIMEOUT_S)
    except TllmError:
        return ()


def read_gpu_status(server: RunningServer) -> tuple[GpuRow, ...]:
    """The GPUs that Triton reports on its metrics page."""
    try:
        return _summarize(server.endpoint, _TIMEOUT_S).host.gpus
    except TllmError:
        return ()


def watch_in_flight(
    endpoints: Sequence[Endpoint],
    engines: Collection[str] | None = None,
    timeout_s: float = IN_FLIGHT_TIMEOUT_S,
) -> Iterator[dict[str, int] | None]:
    """What `count_in_flight` says, look by look, until nothing is in flight.

    That is believed at the second look: one may fall between a request's arrival and the engine.
    Whoever takes a look pauses before the next.
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
    """Engine -> requests that it has, of those of `engines` (or else all) that have any.

    A server that does not listen has none. Returns None if one listens and does not answer within
    `timeout_s`.
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
            # The figures of a worker that died are those that it had.
            is_counted = row.is_worker_up is not False and (engines is None or row.model in engines)
            if row.num_active and is_counted:
                counts[row.model] = counts.get(row.model, 0) + row.num_active
    return counts if counts or is_known else None


def _is_refused(error: TllmError) -> bool:
    reason = getattr(error.__cause__, "reason", None)
    return isinstance(error, NoServer) and isinstance(reason, ConnectionRefusedError)


def _summarize(endpoint: Endpoint, timeout_s: float) -> Summary:
    return summarize(parse_metrics(fetch_metrics(endpoint.metrics, timeout_s), 0.0))
