"""Metadata of a server and of the model to load there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import quote

import grpc
from tritonclient.grpc import service_pb2

from trtllm_serve_cli.client.generate import Interface
from trtllm_serve_cli.client.transport import error_mapping
from trtllm_serve_cli.client.transport.over_grpc import connect, translate_rpc_error
from trtllm_serve_cli.client.transport.over_http import fetch_json
from trtllm_serve_cli.errors import TimedOut, UnknownModel

CORE_MODEL = "tensorrt_llm"
_REQUIRED_INPUTS = {
    "tokens": {"input_ids", "input_lengths", "request_output_len"},
    "text": {"text_input"},
}

InputKind = Literal["tokens", "text"]


@dataclass(frozen=True, slots=True)
class Target:
    """A model of a server; `address` is that of the interface."""

    address: str
    model: str = CORE_MODEL
    interface: Interface = "grpc"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A target and its metadata; `None` if the server does not report a value."""

    address: str
    name: str
    version: str
    server_version: str
    is_decoupled: bool
    max_batch_size: int
    vocab_size: int | None
    interface: Interface = "grpc"
    inputs: frozenset[str] = field(default_factory=frozenset)

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `targets` in `summary.json`."""
        return asdict(self) | {"inputs": sorted(self.inputs)}


def fetch_model(target: Target, input_kind: InputKind, timeout_s: float = 10.0) -> ServedModel:
    """Query the model's metadata. Raise `NoServer`, `UnknownModel` or `RequestFailed`."""
    fetch = _fetch_http if target.interface == "http" else _fetch_grpc
    try:
        model = fetch(target, timeout_s)
    except TimedOut as error:
        why = f"it did not respond within {timeout_s:g} s"
        raise error_mapping.no_server(target.address, why) from error
    _check_inputs(model, input_kind)
    return model


def _fetch_grpc(target: Target, timeout_s: float) -> ServedModel:
    address, name, timeout = target.address, target.model, {"timeout": timeout_s}
    with connect(address) as stub:
        try:
            server = stub.ServerMetadata(service_pb2.ServerMetadataRequest(), **timeout)
            metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=name), **timeout)
            reply = stub.ModelConfig(service_pb2.ModelConfigRequest(name=name), **timeout)
        except grpc.RpcError as error:
            raise translate_rpc_error(error, address, name, timeout_s, has_begun=False) from error
    config = reply.config
    return ServedModel(
        address=target.address,
        name=name,
        version=max(metadata.versions, default=""),
        server_version=server.version,
        is_decoupled=config.model_transaction_policy.decoupled,
        max_batch_size=config.max_batch_size,
        vocab_size=_parse_vocab_size(config.parameters["vocab_size"].string_value),
        interface="grpc",
        inputs=frozenset(tensor.name for tensor in config.input),
    )


def _fetch_http(target: Target, timeout_s: float) -> ServedModel:
    path = f"/v2/models/{quote(target.model, safe='')}"
    server, metadata, config = (
        fetch_json(target.address, each, target.model, timeout_s)
        for each in ("/v2", path, f"{path}/config")
    )
    policy = config.get("model_transaction_policy", {})
    vocab_size = config.get("parameters", {}).get("vocab_size", {}).get("string_value", "")
    return ServedModel(
        address=target.address,
        name=target.model,
        version=max(metadata.get("versions", ()), default=""),
        server_version=str(server.get("version", "")),
        is_decoupled=bool(policy.get("decoupled", False)),
        max_batch_size=int(config.get("max_batch_size", 0)),
        vocab_size=_parse_vocab_size(vocab_size),
        interface="http",
        inputs=frozenset(tensor["name"] for tensor in config.get("input", ())),
    )


def _parse_vocab_size(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) else None


def _check_inputs(model: ServedModel, input_kind: InputKind) -> None:
    if missing := _REQUIRED_INPUTS[input_kind] - model.inputs:
        what = "token-id" if input_kind == "tokens" else "text"
        raise UnknownModel(
            f"The model {model.name} at {model.address} is not an LLM with {what} input.",
            why=f"its inputs lack {', '.join(sorted(missing))}",
            next_step="list the models with `tllm status`; `tllm bench end-to-end` requires a "
            "model with text input, the other workloads one with token ids",
        )
