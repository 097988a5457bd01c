"""Query a server for its models and probe whether the models respond."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtllm_serve_cli.client import ask
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import Completion, GenerateRequest, TritonInterface
from trtllm_serve_cli.client.model_info import fetch_model_config, import_transport
from trtllm_serve_cli.errors import RequestFailed

_PROBE_PROMPT = "Hello"


@dataclass(frozen=True, slots=True)
class IndexedModel:
    """A model in a server's repository.

    `state` is the model state that Triton reports, or "" if the model was never loaded. `reason` is
    Triton's explanation of the state.
    """

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


def fetch_versions(
    endpoint: Endpoint, model: str, interface: TritonInterface, timeout_s: float
) -> tuple[str, str]:
    """Return the server's version and the latest served version of the model.

    Raise `NoServer` if the server cannot be reached, or `RequestFailed` if the request fails.
    """
    server, served = import_transport(interface).fetch_versions(endpoint, model, timeout_s)
    return server, served


def fetch_index(endpoint: Endpoint, timeout_s: float = 3.0) -> tuple[IndexedModel, ...]:
    """Return the models in the server's repository, sorted by name and version.

    Raise `NoServer` if the server cannot be reached, or `RequestFailed` if the request fails.
    """
    from trtllm_serve_cli.client.transport.over_http import fetch_index_http

    index = fetch_index_http(endpoint, timeout_s)
    models = (
        IndexedModel(
            name=each.get("name", ""),
            version=each.get("version", ""),
            state=each.get("state", ""),
            reason=each.get("reason", ""),
        )
        for each in index
    )
    return tuple(sorted(models, key=lambda model: (model.name, model.version)))


def change_model(
    endpoint: Endpoint, model: str, verb: Literal["load", "unload"], timeout_s: float
) -> None:
    """Load or unload a model.

    Loading waits until the model is loaded. Unloading may return before the model is unloaded.
    Raise `NoServer` if the server cannot be reached, or `RequestFailed` if the request fails.
    """
    from trtllm_serve_cli.client.transport.over_http import change_model_http

    change_model_http(endpoint, model, verb, timeout_s)


def probe_model(
    endpoint: Endpoint, model: str, timeout_s: float, interface: TritonInterface = "grpc"
) -> None:
    """Check that a model is ready by requesting an embedding or a token.

    Triton's readiness check is not sufficient, because it does not run the model. Raise `NoServer`
    if the server cannot be reached, or `RequestFailed` if the request fails or if no response
    arrives within `timeout_s`.
    """
    if fetch_model_config(endpoint, model, interface, timeout_s).embedding is not None:
        ask.embed(endpoint, model, _PROBE_PROMPT, interface, timeout_s)
    else:
        probe_token(endpoint, model, timeout_s, interface)


def probe_token(
    endpoint: Endpoint, model: str, timeout_s: float, interface: TritonInterface = "grpc"
) -> Completion:
    """Generate one token to check that a model is ready.

    Triton's readiness check is not sufficient, because it does not run the model. Raise `NoServer`
    if the server cannot be reached, or `RequestFailed` if the request fails or if no token arrives
    within `timeout_s`.
    """
    # Do not stream, because only decoupled models support streaming.
    request = GenerateRequest(_PROBE_PROMPT, max_tokens=1, stream=False)
    completion = ask.generate(endpoint, model, request, interface, timeout_s)
    if completion.ttft_s is None:
        raise RequestFailed(
            f"{model} did not generate a token.",
            why="the request ended without a response",
            next_step="read the server's log with `tllm logs`",
        )
    return completion
