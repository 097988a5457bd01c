"""What a running server says of itself, for whoever asks how it is."""

from __future__ import annotations

from trtllm_serve_cli.client import IndexedModel, fetch_index
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.launch.running import RunningServer
from trtllm_serve_cli.metrics import GpuRow, fetch_metrics, parse_metrics, summarize

# A server that is busy starting or ending must not hold up whoever looks.
_TIMEOUT_S = 2.0


def look_at_models(server: RunningServer) -> tuple[IndexedModel, ...]:
    """Triton's models, loaded or not; none where the server does not say."""
    try:
        return fetch_index(server.endpoint, _TIMEOUT_S)
    except TllmError:
        return ()


def look_at_gpus(server: RunningServer) -> tuple[GpuRow, ...]:
    """The GPUs that Triton reports on its metrics page."""
    try:
        page = fetch_metrics(server.endpoint.metrics, _TIMEOUT_S)
        return summarize(parse_metrics(page, 0.0)).host.gpus
    except TllmError:
        return ()
