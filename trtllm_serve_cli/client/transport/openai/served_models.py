"""Query an OpenAI-compatible server for its models and its version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trtllm_serve_cli.client.transport.openai import failures
from trtllm_serve_cli.client.transport.openai.endpoint import OpenAIEndpoint
from trtllm_serve_cli.client.transport.openai.exchange import Rejected, get_json
from trtllm_serve_cli.errors import BadInput, TllmError

_TIMEOUT_S = 10.0
_MOST_NAMES = 10


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model listed by a server.

    `max_model_len` is the context length in tokens, or None if the server does not report it. vLLM,
    for example, reports the length.
    """

    name: str
    max_model_len: int | None = None


def find_model(
    endpoint: OpenAIEndpoint, name: str | None, timeout_s: float = _TIMEOUT_S
) -> ListedModel:
    """Return the model `name`, or the server's only model if `name` is None.

    A server may accept names that it does not list, so `name` need not be in the list. Raise
    `NoServer` if the server cannot be reached, or `RequestFailed` if a request fails. Raise
    `BadInput` if `name` is None and the server does not list exactly one model.
    """
    try:
        listed = _fetch_models(endpoint, timeout_s)
    except Rejected as error:
        if error.failure.status in (404, 405, 501):  # the server does not list its models
            return ListedModel(name) if name is not None else _refuse_unlisted(endpoint)
        raise failures.request_failed(endpoint.url, name or "the server", error.failure) from error
    if name is not None:
        return next((each for each in listed if each.name == name), ListedModel(name))
    if len(listed) != 1:
        raise _ambiguous(endpoint, listed)
    return listed[0]


def fetch_version(endpoint: OpenAIEndpoint, timeout_s: float = _TIMEOUT_S) -> str:
    """Return the server's version, or an empty string if it cannot be fetched.

    vLLM, SGLang and trtllm-serve report the version at `/version`.
    """
    try:
        version = get_json(endpoint, "/version", timeout_s).get("version")
    except (Rejected, TllmError):
        return ""
    return version if isinstance(version, str) else ""


def _fetch_models(endpoint: OpenAIEndpoint, timeout_s: float) -> list[ListedModel]:
    """Return the models in the server's list, without LoRA adapters.

    vLLM also lists the adapters, with a `parent` field that names the base model.
    """
    body = get_json(endpoint, f"{endpoint.url.path}/models", timeout_s)
    try:
        return [
            ListedModel(str(each["id"]), _read_length(each))
            for each in body["data"]
            if each.get("parent") is None
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise failures.invalid_response(
            endpoint.url, "the response is not a list of models"
        ) from error


def _read_length(entry: dict[str, Any]) -> int | None:
    length = entry.get("max_model_len")
    return length if isinstance(length, int) and length > 0 else None


def _refuse_unlisted(endpoint: OpenAIEndpoint) -> NoReturn:
    raise BadInput(
        "A model name is required.",
        why=f"{endpoint.url}/models does not list the server's models",
        next_step="pass a model name with -m, or check the path in -u, which usually ends with /v1",
    )


def _ambiguous(endpoint: OpenAIEndpoint, listed: Sequence[ListedModel]) -> BadInput:
    names = [each.name for each in listed]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return BadInput(
        "The server has several models." if names else "The server does not list any models.",
        why=f"the models at {endpoint.url} are {', '.join(names[:_MOST_NAMES])}{more}"
        if names
        else f"the list at {endpoint.url}/models is empty",
        next_step=f"select a model with -m, for example -m {names[0]}"
        if names
        else "pass a model name with -m, or wait until the server has loaded a model",
    )
