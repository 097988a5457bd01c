"""Query a server for its models, and probe whether the models generate tokens."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Literal

from trtllm_serve_cli.client import ask
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import Completion, GenerateRequest, Interface
from trtllm_serve_cli.errors import RequestFailed

_PROBE_PROMPT = "Hello"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The settings in a model's `config.pbtxt` that clients use.

    Most fields are parameters that tllm writes. These fields are `None`, empty or false if tllm did
    not render the model. Only a decoupled model can stream responses.
    """

    name: str
    chat_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    adds_bos: bool = False
    max_seq_len: int | None = None
    engine_kind: str | None = None
    is_decoupled: bool = True
    max_batch_size: int = 0
    vocab_size: int | None = None
    tokenizer_dir: str | None = None
    inputs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class IndexedModel:
    """A model in a server's repository.

    `state` is Triton's name for the state, or "" if the model was never loaded. `reason` is
    Triton's explanation of the state.
    """

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


def fetch_model_config(
    endpoint: Endpoint, model: str, interface: Interface = "grpc", timeout_s: float = 10.0
) -> ModelInfo:
    """Return the settings of a model.

    Raise `NoServer` if the server cannot be reached, or `RequestFailed` if the request fails.
    """
    config = _import_transport(interface).fetch_config(endpoint, model, timeout_s)
    parameters = {
        name: str(value.get("string_value", ""))
        for name, value in config.get("parameters", {}).items()
    }
    return ModelInfo(
        name=model,
        chat_template=parameters.get("chat_template") or None,
        bos_token=parameters.get("bos_token", ""),
        eos_token=parameters.get("eos_token", ""),
        adds_bos=parameters.get("adds_bos") == "true",
        max_seq_len=_parse_count(parameters.get("max_seq_len")),
        engine_kind=parameters.get("engine_kind") or None,
        is_decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        max_batch_size=int(config.get("max_batch_size", 0)),
        vocab_size=_parse_count(parameters.get("vocab_size")),
        tokenizer_dir=parameters.get("tokenizer_dir") or None,
        inputs=frozenset(tensor["name"] for tensor in config.get("input", ())),
    )


def _parse_count(text: str | None) -> int | None:
    return int(text) or None if text and text.isdecimal() else None


def fetch_versions(
    endpoint: Endpoint, model: str, interface: Interface, timeout_s: float
) -> tuple[str, str]:
    """Return the versions of the server and of the model.

    Raise `NoServer` if the server cannot be reached, or `RequestFailed` if the request fails.
    """
    server, served = _import_transport(interface).fetch_versions(endpoint, model, timeout_s)
    return server, served


def _import_transport(interface: Interface) -> ModuleType:
    """Import only the module for `interface`, because importing gRPC takes 0.25 s."""
    name = "over_grpc" if interface == "grpc" else "over_http"
    return import_module(f"trtllm_serve_cli.client.transport.{name}")


def fetch_index(endpoint: Endpoint, timeout_s: float = 3.0) -> tuple[IndexedModel, ...]:
    """Return the models in the server's repository, sorted by name.

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
    """Load a model and wait until it is loaded, or start unloading it.

    Raise `NoServer` if the server cannot be reached, or `RequestFailed` with Triton's message.
    """
    from trtllm_serve_cli.client.transport.over_http import change_model_http

    change_model_http(endpoint, model, verb, timeout_s)


def probe_token(
    endpoint: Endpoint, model: str, timeout_s: float, interface: Interface = "grpc"
) -> Completion:
    """Generate one token to check that a model is ready.

    Triton's readiness check does not run the model. Raise `NoServer` if the server cannot be
    reached, or `RequestFailed` if no token arrives within `timeout_s`.
    """
    # Do not stream, because only decoupled models support streaming.
    request = GenerateRequest(_PROBE_PROMPT, max_tokens=1, stream=False)
    completion = ask.generate(endpoint, model, request, interface, timeout_s)
    if completion.ttft_s is None:
        raise RequestFailed(
            f"{model} did not generate a token.",
            why="the stream ended without a response",
            next_step="check the server's log with `tllm logs`",
        )
    return completion
