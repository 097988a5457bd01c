"""Build the ASGI application of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trtllm_serve_cli.gateway.access.call import Call
from trtllm_serve_cli.gateway.access.guard import Guard
from trtllm_serve_cli.gateway.access.keys import KEYS_MARKER, KeyRing
from trtllm_serve_cli.gateway.access.limits import Limits
from trtllm_serve_cli.gateway.access.usage import UsageTable
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.gateway.door import kserve
from trtllm_serve_cli.gateway.door.client_ids import ClientIds
from trtllm_serve_cli.gateway.endpoints import (
    adapters,
    chat,
    completions,
    embeddings,
    messages,
    models,
    page,
    responses,
    system,
    tokenize,
)
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.http import JsonResponse
from trtllm_serve_cli.gateway.model_registry import ModelRegistry
from trtllm_serve_cli.gateway.telemetry.access_log import AccessLog
from trtllm_serve_cli.gateway.telemetry.metrics import MULTIPROCESS_FOLDER, Metrics
from trtllm_serve_cli.gateway.telemetry.tracing import Tracer, open_tracer
from trtllm_serve_cli.runtime.pulse import (
    PERIOD_S,
    PulseFile,
    PulseWriter,
    register_stacks_signal,
)

ROUTES = (
    Route("/", page.show_chat_page, methods=["GET"]),
    Route("/v1/chat/completions", chat.create_chat_completion, methods=["POST"]),
    Route("/v1/completions", completions.create_completion, methods=["POST"]),
    Route("/v1/messages", messages.create_message, methods=["POST"]),
    Route("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"]),
    Route("/v1/responses", responses.create_response, methods=["POST"]),
    Route("/v1/embeddings", embeddings.create_embeddings, methods=["POST"]),
    Route("/v1/models", models.list_models, methods=["GET"]),
    # Without this route, the next one would look for a model with an empty id.
    Route("/v1/models/", models.list_models, methods=["GET"]),
    Route("/v1/models/{id:path}", models.retrieve_model, methods=["GET"]),
    Route("/v1/load_lora_adapter", adapters.load_adapter, methods=["POST"]),
    Route("/v1/unload_lora_adapter", adapters.unload_adapter, methods=["POST"]),
    Route("/tokenize", tokenize.tokenize, methods=["POST"]),
    Route("/detokenize", tokenize.detokenize, methods=["POST"]),
    Route("/tokenizer_info", tokenize.describe_tokenizer, methods=["GET"]),
    Route("/health", system.health, methods=["GET"]),
    Route("/ping", system.health, methods=["GET", "POST"]),
    Route("/metrics", system.metrics, methods=["GET"]),
    Route("/version", system.version, methods=["GET"]),
    Route("/v2{path:path}", kserve.pass_to_triton, methods=["GET", "POST", "PUT", "DELETE"]),
)

# Response headers that scripts from other origins may read.
_EXPOSED_HEADERS = (
    "retry-after",
    "x-request-id",
    *(
        f"x-ratelimit-{each}-{what}"
        for each in ("limit", "remaining", "reset")
        for what in ("requests", "tokens")
    ),
)


def build_app(
    config: GatewayConfig,
    registry: ModelRegistry | None = None,
    usage: UsageTable | None = None,
    client_ids: ClientIds | None = None,
) -> Starlette:
    """Build the gateway's ASGI application.

    If `registry` is None, create a registry that loads the models of `config`. Tests pass a
    registry whose models are already loaded. `usage` and `client_ids` are the usage of each key and
    the ids of requests that the gateway's processes share, or None for a single process.
    """
    log = AccessLog(config.log_format)
    known = registry or ModelRegistry(
        config, log.record_start, log.record_refusal, log.record_waiting
    )
    limits = Limits(config.max_in_flight, config.max_waiting, config.num_processes, table=usage)
    directory = config.server_directory
    metrics = Metrics(limits, None if directory is None else Path(directory))
    tracer = open_tracer(config)

    def report(call: Call) -> None:
        metrics.observe(call)
        log.record(call)
        if call.span_id and tracer is not None:
            tracer.record(call)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        known.start()
        sharing = asyncio.create_task(metrics.share_gauges())
        beating = asyncio.create_task(_beat())
        yield
        sharing.cancel()
        beating.cancel()
        await known.close()
        if app.state.triton is not None:
            await app.state.triton.aclose()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)

    app = Starlette(
        routes=ROUTES,
        lifespan=lifespan,
        middleware=_plan_middleware(config, report, tracer),
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_error},
    )
    app.state.config = config
    app.state.models = known
    app.state.limits = limits
    app.state.metrics = metrics
    app.state.triton = None
    app.state.client_ids = client_ids or ClientIds()
    return app


async def _beat() -> None:
    """Write heartbeats from the event loop, so that the supervisor can detect a blocked loop."""
    register_stacks_signal()
    file = PulseFile("gateway", "api")
    try:
        pulse = PulseWriter(file.path)
        while True:
            pulse.beat()
            await asyncio.sleep(PERIOD_S)
    finally:
        file.close()


def _plan_middleware(
    config: GatewayConfig, report: Callable[[Call], None], tracer: Tracer | None
) -> list[Middleware]:
    """Return the middleware, outermost first: CORS (if configured) and the guard.

    CORS is outermost, so that web pages can read the guard's error responses.
    """
    keys = KeyRing(
        Path(config.keys_file) if config.keys_file else None,
        config.key_policy,
        supervisor_token=config.supervisor_token,
        marker=_find_marker(config),
    )
    guard = Middleware(
        Guard,
        keys=keys,
        max_header_bytes=config.max_header_bytes,
        on_end=report,
        on_start=None if tracer is None else tracer.begin,
    )
    if not config.cors_origins:
        return [guard]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=config.cors_origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=_EXPOSED_HEADERS,
    )
    return [cors, guard]


def _find_marker(config: GatewayConfig) -> Path | None:
    """Return the marker file of the `KeyRing`, or None if no process restarts the gateway."""
    folder = config.server_directory or os.environ.get(MULTIPROCESS_FOLDER)
    return Path(folder, KEYS_MARKER) if folder else None


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JsonResponse(error.body(request.scope), error.status, error.headers())


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {
        404: f"The path {request.url.path} does not exist. Check the URL, for example for a "
        "missing or repeated /v1.",
        405: f"The method {request.method} is not allowed for {request.url.path}. Use a method "
        "from the response's Allow header.",
    }
    message = messages.get(error.status_code, error.detail)
    body = ApiError(error.status_code, message).body(request.scope)
    return JsonResponse(body, error.status_code, error.headers)
