"""Define the targets of a benchmark and fetch the metadata of their models."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trtllm_serve_cli.client.endpoint import Endpoint, Tls
from trtllm_serve_cli.client.generate import Interface, TritonInterface
from trtllm_serve_cli.client.model_info import fetch_model_config
from trtllm_serve_cli.client.server import fetch_versions
from trtllm_serve_cli.client.transport import error_mapping
from trtllm_serve_cli.client.transport.openai.endpoint import Api, OpenAIEndpoint
from trtllm_serve_cli.errors import BadInput, TimedOut

CORE_MODEL = "tensorrt_llm"
_REQUIRED_INPUTS = {
    "tokens": {"input_ids", "input_lengths", "request_output_len"},
    "text": {"text_input"},
}

InputKind = Literal["tokens", "text"]


@dataclass(frozen=True, slots=True)
class Target:
    """A model on a Triton server.

    `address` is the HOST:PORT of the `interface` to use. `imported_model` is the imported model's
    name, or `None` if unknown. `tls` is `None` if the address does not use TLS.
    """

    address: str
    model: str = CORE_MODEL
    interface: TritonInterface = "grpc"
    imported_model: str | None = None
    tls: Tls | None = None

    @property
    def endpoint(self) -> Endpoint:
        """The address as an `Endpoint`, which the functions in `client` require."""
        return Endpoint(grpc=self.address, http=self.address, tls=self.tls)


@dataclass(frozen=True, slots=True)
class OpenAITarget:
    """A model on an OpenAI-compatible server."""

    endpoint: OpenAIEndpoint
    model: str
    api: Api


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A target and its metadata.

    - `address` is the server's HOST:PORT or, with the `openai` interface, its base URL. In a
      simulation, it is a description of the engines.
    - `vocab_size` is the vocabulary size, or `None` if the server does not report it.
    - `inputs` contains the names of the model's inputs or, with the `openai` interface, the request
      fields that the server accepts.
    - `required_inputs` contains the inputs that are not optional.
    - `unsigned_inputs` contains the inputs of type UINT32.
    - `returns_prompt` is true if non-streaming responses start with the prompt: the model's
      configuration does not exclude the prompt, and the model does not have an
      `exclude_input_in_output` input.
    - `api_key` is the API key of an OpenAI-compatible server. It is omitted from results.
    - `imported_model` is the name of the imported model, or `None` if unknown.
    """

    address: str
    name: str
    version: str
    server_version: str
    is_decoupled: bool
    max_batch_size: int
    vocab_size: int | None
    interface: Interface = "grpc"
    inputs: frozenset[str] = field(default_factory=frozenset)
    required_inputs: frozenset[str] = field(default_factory=frozenset)
    unsigned_inputs: frozenset[str] = field(default_factory=frozenset)
    returns_prompt: bool = False
    api_key: str | None = field(default=None, repr=False)
    imported_model: str | None = None
    tls: Tls | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the model as an entry of `targets` in `summary.json`."""
        entry = asdict(self) | {"inputs": sorted(self.inputs)}
        for name in ("returns_prompt", "required_inputs", "unsigned_inputs", "api_key", "tls"):
            del entry[name]
        return entry


def fetch_model(target: Target, input_kind: InputKind, timeout_s: float = 10.0) -> ServedModel:
    """Fetch the metadata of the target's model from its server.

    Raise `NoServer` or `RequestFailed` if a query fails, or `BadInput` if the model does not have
    the inputs that `input_kind` requires.
    """
    endpoint, name, interface = target.endpoint, target.model, target.interface
    try:
        server_version, version = fetch_versions(endpoint, name, interface, timeout_s)
        config = fetch_model_config(endpoint, name, interface, timeout_s)
    except TimedOut as error:
        why = f"the server did not respond within {timeout_s:g} s"
        raise error_mapping.no_server(target.address, why) from error
    model = ServedModel(
        address=target.address,
        name=name,
        version=version,
        server_version=server_version,
        is_decoupled=config.is_decoupled,
        max_batch_size=config.max_batch_size,
        vocab_size=config.vocab_size,
        interface=interface,
        inputs=config.inputs,
        required_inputs=config.required_inputs,
        unsigned_inputs=config.unsigned_inputs,
        returns_prompt=(
            "exclude_input_in_output" not in config.inputs and not config.excludes_input
        ),
        imported_model=target.imported_model,
        tls=target.tls,
    )
    _check_inputs(model, input_kind)
    return model


def _check_inputs(model: ServedModel, input_kind: InputKind) -> None:
    if missing := _REQUIRED_INPUTS[input_kind] - model.inputs:
        what = "token ids" if input_kind == "tokens" else "text"
        instead = ", or run `tllm bench end-to-end` to send text" if input_kind == "tokens" else ""
        raise BadInput(
            f"The model {model.name} at {model.address} does not accept {what}.",
            why=f"the model's inputs do not include {', '.join(sorted(missing))}",
            next_step=f"run `tllm status` to list the models, then pass -m with an LLM that "
            f"accepts {what}{instead}",
        )
