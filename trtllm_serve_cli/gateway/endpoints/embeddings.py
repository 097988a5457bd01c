"""Handle `POST /v1/embeddings`.

Source of the fields and limits: `CreateEmbeddingRequest` in OpenAI's openapi.yaml. The
`prompt_name` field comes from sentence-transformers, and `truncate_prompt_tokens` from vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.gateway.access.admission import admit, charge_prompt, process, run_work
from trtllm_serve_cli.gateway.errors import invalid
from trtllm_serve_cli.gateway.generation.embeddings import compute_embeddings
from trtllm_serve_cli.gateway.http import JsonResponse, read_json, run_while_connected
from trtllm_serve_cli.gateway.schema.embeddings import MAX_INPUTS, EmbeddingsBody
from trtllm_serve_cli.gateway.served_model import LoadedModel
from trtllm_serve_cli.runtime.embedding import decode_vector, encode_vector, shorten
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings
from trtllm_serve_cli.runtime.engine import InvalidRequest

# Larger responses are encoded in a thread. The unit is characters of Base64. Encoding this size as
# JSON numbers takes about 2 ms.
_LONG_EMBEDDINGS = 32 * 1024


async def create_embeddings(request: Request) -> Response:
    """Compute the embedding of each input."""
    body = await read_json(request, EmbeddingsBody)
    model = request.app.state.models.find(body.model)
    await admit(request, model.name)
    settings, inputs = await process(request, partial(plan_embeddings, model, body))
    num_tokens = sum(map(len, inputs))
    charge_prompt(request, num_tokens)
    embeddings = await run_while_connected(
        request.receive, lambda: compute_embeddings(model.backend, inputs)
    )
    if embeddings is None:
        return Response(status_code=499)
    encode = partial(_encode_response, model, body, settings, embeddings, num_tokens)
    return JsonResponse(
        await run_work(encode, is_long=sum(map(len, embeddings)) > _LONG_EMBEDDINGS)
    )


def _encode_response(
    model: LoadedModel,
    body: EmbeddingsBody,
    settings: EmbeddingSettings,
    embeddings: Sequence[str],
    num_tokens: int,
) -> bytes:
    # Encode each embedding separately, because msgspec does not release the GIL.
    data = [
        msgspec.Raw(
            msgspec.json.encode(
                {"object": "embedding", "index": index, "embedding": _convert(each, settings, body)}
            )
        )
        for index, each in enumerate(embeddings)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return msgspec.json.encode(
        {"object": "list", "data": data, "model": model.name, "usage": usage}
    )


def plan_embeddings(
    model: LoadedModel, body: EmbeddingsBody
) -> tuple[EmbeddingSettings, list[list[int]]]:
    """Return the model's embedding settings and the token ids of each input.

    Raise `ApiError` (400) if the request is not valid.
    """
    settings = check_request(model, body)
    return settings, encode_inputs(model, body, _find_prompt(settings, body))


def check_request(model: LoadedModel, body: EmbeddingsBody) -> EmbeddingSettings:
    """Validate a request and return the model's embedding settings.

    Raise `ApiError` (400) if the request is not valid.
    """
    settings = model.info.embedding
    if settings is None:
        raise invalid(
            f"The model '{model.name}' does not support the Embeddings API. Select an embedding "
            "model.",
            "model",
            "unsupported",
        )
    inputs = body.inputs
    if not inputs or not all(inputs):
        raise invalid(
            "`input` is empty or contains an empty item. Send text or token ids.", "input"
        )
    if isinstance(body.input, list) and len({type(each) for each in body.input}) > 1:
        raise invalid(
            "The items of `input` have different types. Send only strings, only token ids, or only "
            "lists of token ids.",
            "input",
        )
    if len(inputs) > MAX_INPUTS:
        raise invalid(
            f"`input` has {len(inputs)} items, but the maximum is {MAX_INPUTS}. Send several "
            "requests.",
            "input",
        )
    if body.dimensions is not None:
        try:
            settings.check_dimensions(body.dimensions)
        except InvalidRequest as error:
            raise invalid(f"{error}.", "dimensions") from error
    return settings


def encode_inputs(model: LoadedModel, body: EmbeddingsBody, prefix: str) -> list[list[int]]:
    """Return the token ids of each input, truncated if the request sets `truncate_prompt_tokens`.

    Raise `ApiError` (400) if an input is too long or contains an unknown token id, or if
    `truncate_prompt_tokens` is 0.
    """
    longest = model.max_seq_len
    cut = body.truncate_prompt_tokens
    limit = None if cut is None else longest if cut == -1 else min(cut, longest)
    if limit == 0:
        raise invalid(
            "`truncate_prompt_tokens` cannot be 0. Use a positive number, or -1 for the model's "
            "maximum input length.",
            "truncate_prompt_tokens",
        )
    encoded = []
    for each in body.inputs:
        ids = _encode(model, each, prefix, limit)
        if len(ids) > longest:
            raise invalid(
                f"This model's maximum input length is {longest} tokens, but an input has "
                f"{len(ids)} tokens. Shorten the input, or set `truncate_prompt_tokens` to -1.",
                "input",
                "context_length_exceeded",
            )
        encoded.append(ids)
    return encoded


def _find_prompt(settings: EmbeddingSettings, body: EmbeddingsBody) -> str:
    if not body.prompt_name:
        return ""
    if not all(isinstance(each, str) for each in body.inputs):
        raise invalid(
            "`prompt_name` requires text, but `input` contains token ids. Send text, or omit "
            "`prompt_name`.",
            "prompt_name",
        )
    try:
        return settings.find_prompt(body.prompt_name)
    except InvalidRequest as error:
        raise invalid(f"{error}.", "prompt_name") from error


def _encode(model: LoadedModel, each: str | list[int], prefix: str, limit: int | None) -> list[int]:
    if isinstance(each, str):
        if limit is None:
            ids = model.encode(prefix + each, "input")
        else:
            ids = model.tokenizer.encode(prefix + each)
        if limit is None or len(ids) <= limit:
            return ids
        plain = model.tokenizer.encode(prefix + each, add_special_tokens=False)
        return cut_tokens(ids, plain, limit)
    model.check_token_ids(each, "input")
    return each if limit is None else each[:limit]


def cut_tokens(ids: list[int], plain: list[int], limit: int) -> list[int]:
    """Truncate a text to `limit` tokens, but keep the special tokens before and after it.

    `ids` includes the special tokens; `plain` does not. If `limit` leaves no room for the text, or
    `ids` does not contain `plain`, return the first `limit` ids.
    """
    num_special = len(ids) - len(plain)
    for start in range(num_special + 1):
        if ids[start : start + len(plain)] == plain and limit > num_special:
            end = start + len(plain)
            return [*ids[:start], *plain[: limit - num_special], *ids[end:]]
    return ids[:limit]


def _convert(text: str, settings: EmbeddingSettings, body: EmbeddingsBody) -> Any:
    """Return an embedding in the requested format, shortened to the requested dimensions."""
    if body.encoding_format == "base64" and body.dimensions is None:
        return text
    vector = shorten(decode_vector(text), body.dimensions, settings)
    return encode_vector(vector) if body.encoding_format == "base64" else vector.tolist()
