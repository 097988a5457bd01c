"""Fetch a model's configuration from its server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import TritonInterface
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings
from trtllm_serve_cli.runtime.triton.parameters import has_queue_policy

LoraDatatype = Literal["FP16", "BF16", "FP32"]
CORE_MODEL = "tensorrt_llm"
UPSTREAM_TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The settings in a model's `config.pbtxt` that clients use.

    Most fields are parameters that tllm writes to the file. If tllm did not render the model, these
    fields are None, empty or false.

    - `is_decoupled` is true if the model is decoupled. Other models cannot stream responses.
    - `inputs` contains the names of all inputs.
    - `required_inputs` contains the names of the inputs that are not optional.
    - `unsigned_inputs` contains the names of the inputs of type UINT32.
    - `lora_datatype` is the type of the `lora_weights` input.
    - `tool_chat_template` is the template for conversations with tools. If it is None,
      `chat_template` is used for all conversations.
    - `excludes_input` is true if the model's settings exclude the prompt from responses.
    - `accumulates_tokens` is true if each streamed response contains the whole text so far.
    - `core_model` is the name of the `tensorrt_llm` model that a text model calls.
    - `lora_prefetch_dir` is the folder from which `tensorrt_llm` loads LoRA adapters.
    - `renders_chat` is true if the server applies the chat template to messages. In this case,
      `chat_template` is None.
    - `settings_hash` is a hash of the model's parameters, including the engine folder's name.
    - `embedding` is set if the model computes embeddings.
    - `has_queue_policy` is true if Triton's queue for the model has priorities or timeouts.
    """

    name: str
    chat_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    adds_bos: bool = False
    tool_chat_template: str | None = None
    max_seq_len: int | None = None
    engine_kind: str | None = None
    is_decoupled: bool = True
    max_batch_size: int = 0
    vocab_size: int | None = None
    tokenizer_dir: str | None = None
    inputs: frozenset[str] = frozenset()
    required_inputs: frozenset[str] = frozenset()
    unsigned_inputs: frozenset[str] = frozenset()
    lora_datatype: LoraDatatype = "FP16"
    tensorrt_llm_version: str = ""
    excludes_input: bool = False
    accumulates_tokens: bool = False
    core_model: str = ""
    lora_prefetch_dir: str = ""
    renders_chat: bool = False
    settings_hash: str = ""
    embedding: EmbeddingSettings | None = None
    has_queue_policy: bool = False

    def name_of(self, role: str) -> str:
        """Return the server's name for the model `role` in this model's repository.

        If the server combines several repositories, the name starts with a prefix for the
        repository. The prefix is taken from `core_model`, or from this model's name if that name
        ends with the name of one of NVIDIA's text models.
        """
        if role == CORE_MODEL and self.core_model:
            return self.core_model
        named_after = {CORE_MODEL: self.core_model} | dict.fromkeys(UPSTREAM_TEXT_MODELS, self.name)
        for suffix, name in named_after.items():
            if name.endswith(suffix):
                return name.removesuffix(suffix) + role
        return role


def fetch_model_config(
    endpoint: Endpoint, model: str, interface: TritonInterface = "grpc", timeout_s: float = 10.0
) -> ModelInfo:
    """Fetch a model's settings from its server.

    Raise `NoServer` if the server cannot be reached, or `RequestFailed` if the request fails or the
    response is not a model configuration.
    """
    info: ModelInfo = import_transport(interface).fetch_info(endpoint, model, timeout_s)
    return info


def parse_model_config(model: str, config: Mapping[str, Any]) -> ModelInfo:
    """Parse a model configuration, which is a protobuf message converted to a dict."""
    parameters = {
        name: str(value.get("string_value", ""))
        for name, value in config.get("parameters", {}).items()
    }
    tensors = config.get("input", ())
    return ModelInfo(
        name=model,
        chat_template=parameters.get("chat_template") or None,
        bos_token=parameters.get("bos_token", ""),
        eos_token=parameters.get("eos_token", ""),
        adds_bos=parameters.get("adds_bos") == "true",
        tool_chat_template=parameters.get("tool_chat_template") or None,
        max_seq_len=_parse_count(parameters.get("max_seq_len")),
        engine_kind=parameters.get("engine_kind") or None,
        is_decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        max_batch_size=int(config.get("max_batch_size", 0)),
        vocab_size=_parse_count(parameters.get("vocab_size")),
        tokenizer_dir=parameters.get("tokenizer_dir") or None,
        inputs=frozenset(tensor["name"] for tensor in tensors),
        required_inputs=frozenset(each["name"] for each in tensors if not each.get("optional")),
        unsigned_inputs=frozenset(
            each["name"] for each in tensors if each.get("data_type") == "TYPE_UINT32"
        ),
        lora_datatype=_find_lora_datatype(tensors),
        excludes_input=parameters.get("exclude_input_in_output", "").lower() == "true",
        tensorrt_llm_version=parameters.get("tensorrt_llm_version", ""),
        # NVIDIA's `tensorrt_llm_bls` model treats these values as true.
        accumulates_tokens=parameters.get("accumulate_tokens", "").lower()
        in ("true", "yes", "1", "t"),
        lora_prefetch_dir=_parse_name(parameters.get("lora_prefetch_dir", "")),
        core_model=_parse_name(parameters.get("tensorrt_llm_model_name", "")),
        settings_hash=_hash_parameters(parameters),
        embedding=_parse_embedding(parameters.get("embedding", "")),
        has_queue_policy=has_queue_policy(config),
    )


def _find_lora_datatype(tensors: Iterable[Mapping[str, Any]]) -> LoraDatatype:
    types = {each["name"]: each.get("data_type") for each in tensors}
    known: dict[str, LoraDatatype] = {"TYPE_BF16": "BF16", "TYPE_FP32": "FP32"}
    return known.get(str(types.get("lora_weights")), "FP16")


def _hash_parameters(parameters: Mapping[str, str]) -> str:
    """Return a hash that does not depend on where the model and its engine are stored."""
    named = {
        name: Path(value).name if value.startswith("/") else value
        for name, value in parameters.items()
    }
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def _parse_embedding(text: str) -> EmbeddingSettings | None:
    try:
        return EmbeddingSettings.from_dict(json.loads(text)) if text else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _parse_count(text: str | None) -> int | None:
    return int(text) or None if text and text.isdecimal() else None


def _parse_name(text: str) -> str:
    """Return `text`, or "" if it is a template variable that has not been replaced."""
    return "" if text.startswith("${") else text


def find_latest(versions: Iterable[str]) -> str:
    """Return a model's latest version, or "" if there are no versions."""
    return max(versions, key=lambda version: (len(version), version), default="")


def import_transport(interface: TritonInterface) -> ModuleType:
    """Import and return the transport module for `interface`.

    The module for the other interface is not imported, because importing gRPC takes 0.25 s.
    """
    name = "over_grpc" if interface == "grpc" else "over_http"
    return import_module(f"trtllm_serve_cli.client.transport.{name}")
