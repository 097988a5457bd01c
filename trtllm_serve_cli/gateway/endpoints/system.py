"""Handle `GET /health`, `/metrics` and `/version`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli import __version__
from trtllm_serve_cli.gateway.errors import unavailable
from trtllm_serve_cli.gateway.http import json_response
from trtllm_serve_cli.gateway.telemetry.metrics import CONTENT_TYPE


async def metrics(request: Request) -> Response:
    """Return the gateway's metrics in Prometheus's text format."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE)


async def health(request: Request) -> Response:
    """Return 200 if every model can receive requests. Raise `ApiError` (503) otherwise."""
    if problems := request.app.state.models.find_problems():
        raise unavailable(f"{'; '.join(problems)}; retry the request.")
    return Response()


async def version(request: Request) -> Response:
    """Return the version of tllm."""
    return json_response({"version": __version__})
