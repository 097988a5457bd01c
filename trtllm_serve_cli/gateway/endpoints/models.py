"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.gateway.access.admission import check_model
from trtllm_serve_cli.gateway.access.call import find_call
from trtllm_serve_cli.gateway.http import json_response
from trtllm_serve_cli.gateway.served_model import LoadedModel


async def list_models(request: Request) -> Response:
    """List the models that the client can select with its API key."""
    key = find_call(request.scope).key
    models = [
        describe_model(each)
        for each in request.app.state.models.list_loaded()
        if key is None or key.may_use(each.name)
    ]
    return json_response({"object": "list", "data": models})


async def retrieve_model(request: Request) -> Response:
    """Describe one model. Its name may contain slashes."""
    check_model(request, request.path_params["id"])
    return json_response(describe_model(request.app.state.models.find(request.path_params["id"])))


def describe_model(model: LoadedModel) -> dict[str, Any]:
    """Return a model in the format of OpenAI's API, with vLLM's additional fields."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "tllm",
        "root": model.root or model.name,
        "parent": model.root,
        "max_model_len": model.info.max_seq_len,
    }
