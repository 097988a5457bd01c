"""Build the ASGI application of the gateway."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.gateway.door import kserve
from trtllm_serve_cli.gateway.endpoints import chat, completions, models, page, system, tokenize
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.http import JsonResponse
from trtllm_serve_cli.gateway.model_registry import ModelRegistry

ROUTES = (
    Route("/", page.show_chat_page, methods=["GET"]),
    Route("/v1/chat/completions", chat.create_chat_completion, methods=["POST"]),
    Route("/v1/completions", completions.create_completion, methods=["POST"]),
    Route("/v1/models", models.list_models, methods=["GET"]),
    Route("/v1/models/{id:path}", models.retrieve_model, methods=["GET"]),
    Route("/tokenize", tokenize.tokenize, methods=["POST"]),
    Route("/detokenize", tokenize.detokenize, methods=["POST"]),
    Route("/health", system.health, methods=["GET"]),
    Route("/version", system.version, methods=["GET"]),
    Route("/v2{path:path}", kserve.pass_to_triton, methods=["GET", "POST", "PUT", "DELETE"]),
)


def build_app(config: GatewayConfig, registry: ModelRegistry | None = None) -> Starlette:
    """Return the application. Tests pass a `registry` with models that are already loaded."""
    known = ModelRegistry(config) if registry is None else registry

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        known.start()
        async with kserve.open_session() as app.state.triton_session:
            yield
        await known.close()

    app = Starlette(
        routes=ROUTES,
        lifespan=lifespan,
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_error, 500: _on_bug},
    )
    app.state.config = config
    app.state.models = known
    return app


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JsonResponse(error.body(), error.status, error.headers())


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {
        404: f"The path {request.url.path} does not exist.",
        405: f"The method {request.method} is not allowed for {request.url.path}.",
    }
    message = messages.get(error.status_code, error.detail)
    body = ApiError(error.status_code, message).body()
    return JsonResponse(body, error.status_code, error.headers)


async def _on_bug(request: Request, error: Exception) -> Response:
    message = "The gateway failed. The reason is in its log."
    return JsonResponse(ApiError(500, message).body(), 500)
