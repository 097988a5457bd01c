"""`POST /v1/embeddings`, which the engines of the gateway do not support."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.gateway.access.admission import check_model
from trtllm_serve_cli.gateway.errors import invalid
from trtllm_serve_cli.gateway.http import read_json


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/embeddings`. Only the model is read."""

    model: str


async def create_embeddings(request: Request) -> Response:
    """Raise `ApiError` (400), because no engine computes embeddings."""
    body = await read_json(request, EmbeddingsBody)
    check_model(request, body.model)
    model = request.app.state.models.find(body.model)
    raise invalid(
        f"The model '{model.name}' has an engine that generates text and does not compute "
        "embeddings. Send the request to a server with an embedding model.",
        "model",
        "unsupported",
    )
