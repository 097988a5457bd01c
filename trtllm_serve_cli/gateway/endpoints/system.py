"""Handle `/health`, `/ping`, `/metrics` and `/version`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli import __version__
from trtllm_serve_cli.gateway.errors import unavailable
from trtllm_serve_cli.gateway.http import json_response
from trtllm_serve_cli.gateway.telemetry.metrics import CONTENT_TYPE
from trtllm_serve_cli.runtime.telemetry.server_status import find_server_problem


async def metrics(request: Request) -> Response:
    """Return the gateway's metrics in Prometheus's text format."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE)


async def health(request: Request) -> Response:
    """Return status 200 if all models can receive requests and the server responds.

    Otherwise, raise `ApiError` (503). The check skips models that the gateway cannot serve at all.
    """
    problems = list(request.app.state.models.find_problems())
    if problem := find_server_problem(request.app.state.config.server_directory):
        problems.append(f"The server does not respond: {problem}")
    if problems:
        raise unavailable(f"{'; '.join(problems)}. Retry the request.")
    return Response()


async def version(request: Request) -> Response:
    """Return the version of tllm."""
    return json_response({"version": __version__})
