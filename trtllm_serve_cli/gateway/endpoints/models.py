"""Handle `GET /v1/models` and `GET /v1/models/{id}` in OpenAI's and Anthropic's formats.

Sources of Anthropic's format: `anthropic/types/model_info.py` and `model_list_params.py`, and
`anthropic/pagination.py`, in version 2.12 of the Python package `anthropic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.gateway.access.admission import check_model
from trtllm_serve_cli.gateway.access.call import find_call
from trtllm_serve_cli.gateway.errors import invalid, is_anthropic
from trtllm_serve_cli.gateway.http import json_response
from trtllm_serve_cli.gateway.schema.body_errors import explain_invalid_field
from trtllm_serve_cli.gateway.served_model import LoadedModel

# Name of the query parameter that Anthropic's client repeats for each value of `lifecycle`.
_LIFECYCLE = "lifecycle[]"


class ModelsQuery(msgspec.Struct, kw_only=True):
    """Query parameters of Anthropic's `GET /v1/models`. OpenAI's endpoint has none."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20
    after_id: str | None = None
    before_id: str | None = None
    lifecycle: list[str] = []


async def list_models(request: Request) -> Response:
    """List the available models that the client's API key may use."""
    key = find_call(request.scope).key
    models = [
        each
        for each in request.app.state.models.list_loaded()
        if key is None or key.may_use(each.name)
    ]
    if is_anthropic(request.scope):
        return json_response(describe_page(models, _read_query(request)))
    return json_response({"object": "list", "data": [describe_model(each) for each in models]})


async def retrieve_model(request: Request) -> Response:
    """Describe one model. The model name may contain slashes."""
    check_model(request, request.path_params["id"])
    model = request.app.state.models.find(request.path_params["id"])
    describe = describe_anthropic_model if is_anthropic(request.scope) else describe_model
    return json_response(describe(model))


def describe_model(model: LoadedModel) -> dict[str, Any]:
    """Return a model in the format of OpenAI's API, with vLLM's additional fields.

    The gateway adds the field `task`: "generate", or "embed" for models that compute embeddings.
    """
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "tllm",
        "root": model.root or model.name,
        "parent": model.root,
        "max_model_len": model.info.max_seq_len,
        "task": "generate" if model.info.embedding is None else "embed",
    }


def describe_anthropic_model(model: LoadedModel) -> dict[str, Any]:
    """Return a model in the format of Anthropic's API."""
    created = datetime.fromtimestamp(model.created, timezone.utc)
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": model.info.max_seq_len,
        "max_tokens": model.info.max_seq_len,
        "capabilities": None,
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
    }


def describe_page(models: Sequence[LoadedModel], query: ModelsQuery) -> dict[str, Any]:
    """Return a page of models in the format of Anthropic's API.

    Raise `ApiError` (400) if both `after_id` and `before_id` are set, or if either contains the
    name of a model that is not listed.
    """
    if query.after_id is not None and query.before_id is not None:
        raise invalid(
            "`after_id` and `before_id` cannot both be set. Omit one of them.", "after_id"
        )
    listed = list(models) if not query.lifecycle or "active" in query.lifecycle else []
    if query.before_id is not None:
        listed = listed[: _find(listed, query.before_id, "before_id")]
        page = listed[-query.limit :]
    else:
        if query.after_id is not None:
            listed = listed[_find(listed, query.after_id, "after_id") + 1 :]
        page = listed[: query.limit]
    return {
        "data": [describe_anthropic_model(each) for each in page],
        "has_more": len(page) < len(listed),
        "first_id": page[0].name if page else None,
        "last_id": page[-1].name if page else None,
    }


def _find(models: Sequence[LoadedModel], name: str, param: str) -> int:
    for index, model in enumerate(models):
        if model.name == name:
            return index
    raise invalid(
        f"`{param}` is {name!r}, but no listed model has this id. Use the `first_id` or `last_id` "
        "of another page.",
        param,
    )


def _read_query(request: Request) -> ModelsQuery:
    query = request.query_params
    values: dict[str, Any] = {**query, "lifecycle": query.getlist(_LIFECYCLE)}
    try:
        return msgspec.convert(values, ModelsQuery, strict=False)
    except msgspec.ValidationError as error:
        raise explain_invalid_field(error, ModelsQuery) from error
