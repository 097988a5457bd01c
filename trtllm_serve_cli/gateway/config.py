"""Define the gateway's configuration and convert it to and from JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_serve_cli.choices import GenerationConfigSource, KeyPolicy, LogFormat
from trtllm_serve_cli.client.address import join_address
from trtllm_serve_cli.client.endpoint import Endpoint, Tls
from trtllm_serve_cli.errors import BadInput, explain_invalid_file

DEFAULT_PORT = 9000
MIB = 1 << 20
# A prompt of one million token ids takes up to 8 MB of JSON.
DEFAULT_MAX_BODY_MIB = 8
DEFAULT_MAX_IN_FLIGHT = 4096
DEFAULT_MAX_WAITING = 4096
DEFAULT_RECEIVE_TIMEOUT_S = 30.0
DEFAULT_SEND_TIMEOUT_S = 60.0
# Open files to allow per gateway process, in addition to one connection per running or queued
# request. Examples are connections to servers and idle client connections.
_OTHER_OPEN_FILES = 256

# Pattern for LoRA adapter names.
ADAPTER_NAME = r"^[\w.:/@+-]{1,128}\Z"

# Maps wildcard bind addresses to the loopback addresses for clients on this machine.
_LOOPBACKS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that the gateway serves."""

    # The model's name in API requests.
    name: str
    # Name of the Triton model that accepts text prompts.
    text_model: str
    # Addresses of the server that runs the model.
    endpoint: Endpoint
    # Tokenizer folder to use if the Triton model configurations do not specify one.
    tokenizer_dir: str | None = None
    # Import time of the model in seconds since the epoch, or None if it is unknown.
    created_at: int | None = None


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """A LoRA adapter, which clients select by name like a model."""

    # The adapter's name in API requests.
    name: str
    # Folder with the adapter files on the gateway's machine.
    folder: str
    # Name of the base model in `GatewayConfig.models`.
    model: str


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The configuration of a gateway."""

    # If several entries have the same name, requests are distributed across their servers.
    models: tuple[ServedModel, ...]
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    num_processes: int = 1
    # State folder of the server that `tllm start` supervises together with the gateway, or None for
    # a standalone gateway.
    server_directory: str | None = None
    # Chat template to use instead of the models' own templates.
    chat_template: str | None = None
    # Source of the default sampling parameters: each model's `generation_config.json` ("auto") or
    # OpenAI's defaults ("off").
    generation_config: GenerationConfigSource = "auto"
    # Name of a tool call format in `prompts/tools/formats.py`, or None to detect the format from
    # the model's chat template.
    tool_parser: str | None = None
    # Tokenizer folder to use instead of the models' own folders.
    tokenizer_dir: str | None = None
    # LoRA adapters to serve in addition to the adapters that the engines load at startup.
    adapters: tuple[ServedAdapter, ...] = ()
    # Folder from which clients may load LoRA adapters at run time, or None to disable loading.
    runtime_lora_dir: str | None = None
    # File with the hashed API keys.
    keys_file: str | None = None
    # Whether requests require an API key. With "auto", a key is required once `keys_file` exists.
    # With "on", a key is always required. With "off", keys are not checked.
    key_policy: KeyPolicy = "auto"
    # Allowed CORS origins.
    cors_origins: tuple[str, ...] = ()
    # Files with the TLS certificate and the private key, or None to serve plain HTTP.
    tls_certificate: str | None = None
    tls_key: str | None = None
    # Maximum sizes of the request headers and the request body, in bytes.
    max_header_bytes: int = 32 * 1024
    max_body_bytes: int = DEFAULT_MAX_BODY_MIB * MIB
    # Timeout in seconds for receiving the request headers, and separately for receiving the body.
    receive_timeout_s: float = DEFAULT_RECEIVE_TIMEOUT_S
    # Maximum numbers of running and queued requests, divided equally among the gateway's processes.
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    max_waiting: int = DEFAULT_MAX_WAITING
    # Grace period in seconds for requests in flight when the gateway stops.
    drain_s: float = 30.0
    # Timeout in seconds for sending to a client that stops reading a stream. The client is
    # disconnected after at most twice this time.
    send_timeout_s: float = DEFAULT_SEND_TIMEOUT_S
    # Format of the access log.
    log_format: LogFormat = "text"
    # OTLP endpoint URL for request spans, or None to disable tracing.
    otlp_traces: str | None = None
    # Trace one in `trace_rate` requests that have no valid `traceparent` header.
    trace_rate: int = 1
    # API key that the server's supervisor uses for warm-up requests, or "".
    supervisor_token: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """The base URL for clients on this machine."""
        host = _LOOPBACKS.get(self.host, self.host)
        scheme = "https" if self.tls_certificate else "http"
        return f"{scheme}://{join_address(host, self.port)}"

    @property
    def num_open_files(self) -> int:
        """The minimum open file limit of each process."""
        num_requests = (self.max_in_flight + self.max_waiting) // self.num_processes
        return num_requests + _OTHER_OPEN_FILES

    def to_json(self) -> str:
        """Return the configuration as JSON, including the secret `supervisor_token`."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> GatewayConfig:
        """Parse the output of `to_json`."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> GatewayConfig:
        """Create a configuration from decoded JSON."""
        models = tuple(
            ServedModel(**{**model, "endpoint": _read_endpoint(model["endpoint"])})
            for model in fields["models"]
        )
        adapters = tuple(ServedAdapter(**each) for each in fields.get("adapters", ()))
        origins = tuple(fields.get("cors_origins", ()))
        return cls(**{**fields, "models": models, "adapters": adapters, "cors_origins": origins})


def read_config(file: Path) -> GatewayConfig:
    """Read a configuration from `file`. Raise `BadInput` if the file cannot be used."""
    try:
        return GatewayConfig.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise BadInput(
            f"The gateway's configuration in {file.parent} cannot be used.",
            why=explain_invalid_file(file.name, error),
            next_step="check the disk and the file permissions, then run `tllm restart`, which "
            "writes the file again",
        ) from error


def _read_endpoint(fields: Mapping[str, Any]) -> Endpoint:
    tls = fields.get("tls")
    return Endpoint(**{**fields, "tls": Tls(**tls) if tls else None})
