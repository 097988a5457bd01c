"""Define the gateway's configuration, and convert it to and from JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_serve_cli.choices import GenerationConfigSource, KeyPolicy, LogFormat
from trtllm_serve_cli.client.address import join_address
from trtllm_serve_cli.client.endpoint import Endpoint, Tls

DEFAULT_PORT = 9000
MIB = 1 << 20
# A prompt of one million token ids takes up to 8 MB of JSON.
DEFAULT_MAX_BODY_MIB = 8
DEFAULT_MAX_IN_FLIGHT = 4096
DEFAULT_MAX_WAITING = 4096
DEFAULT_RECEIVE_TIMEOUT_S = 30.0
DEFAULT_SEND_TIMEOUT_S = 60.0
# The number of open files to allow for each gateway process in addition to the connections of
# running and waiting requests: connections to servers, libraries and idle client connections.
_OTHER_OPEN_FILES = 256

# The pattern of the names of LoRA adapters.
ADAPTER_NAME = r"^[\w.:/@+-]{1,128}\Z"

# Maps wildcard bind addresses to the addresses at which clients on this machine reach the gateway.
_LOOPBACKS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model behind the gateway.

    Clients select the model by `name`. `text_model` is the name of the Triton model that accepts
    text prompts. `endpoint` contains the addresses of the server that runs the model.
    `tokenizer_dir` is the tokenizer folder to use if the Triton configurations of the model and of
    the models that it calls do not specify one. `created_at` is the time when the model was
    imported, in seconds since the epoch, or None if it is unknown.
    """

    name: str
    text_model: str
    endpoint: Endpoint
    tokenizer_dir: str | None = None
    created_at: int | None = None


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """A LoRA adapter that clients select as the model `name`.

    `model` is the name of its base model in `GatewayConfig.models`. `folder` contains the adapter's
    files on the gateway's machine.
    """

    name: str
    folder: str
    model: str


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The configuration of a gateway.

    If `models` contains a name several times, requests for this model are distributed over the
    listed servers. `server_directory` is the state folder of the server that `tllm start`
    supervises together with the gateway, or None if the gateway runs without such a server.
    `chat_template` replaces the models' own templates. If `generation_config` is "auto", the
    sampling parameters in each model's `generation_config.json` are the defaults. `tool_parser` is
    the name of a tool call format in `prompts/tools/formats.py`, or None to detect the format from
    the model's template. `tokenizer_dir` replaces the tokenizer folders of all models. `adapters`
    are LoRA adapters that the gateway serves in addition to those that the engines load. Clients
    may load further adapters from folders below `runtime_lora_dir`. If it is None, clients may not
    load adapters.

    `keys_file` contains the hashed API keys. If `key_policy` is "auto", a key is required once this
    file exists. If it is "on", a key is always required. If it is "off", keys are not checked.
    `cors_origins` are the origins of the web pages that may send requests. With `tls_certificate`
    and `tls_key`, the gateway serves HTTPS.

    `max_header_bytes` and `max_body_bytes` limit the size of a request. A request is rejected if
    its headers have not arrived after `receive_timeout_s`, or its body after another
    `receive_timeout_s`. At most `max_in_flight` requests run at the same time, and at most
    `max_waiting` more are queued; the gateway's `num_processes` processes share both numbers
    equally. A client that stops reading a stream is disconnected at most two `send_timeout_s`
    later. When the gateway stops, requests in flight have `drain_s` seconds to finish.

    `log_format` is the format of the access log. `otlp_traces` is the URL that receives the spans
    of requests, or None if requests are not traced. One in `trace_rate` requests without a
    `traceparent` header is traced. `supervisor_token` is the API key of the warm-up requests that
    the server's supervisor sends, or "".
    """

    models: tuple[ServedModel, ...]
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    num_processes: int = 1
    server_directory: str | None = None
    chat_template: str | None = None
    generation_config: GenerationConfigSource = "auto"
    tool_parser: str | None = None
    tokenizer_dir: str | None = None
    adapters: tuple[ServedAdapter, ...] = ()
    runtime_lora_dir: str | None = None
    keys_file: str | None = None
    key_policy: KeyPolicy = "auto"
    cors_origins: tuple[str, ...] = ()
    tls_certificate: str | None = None
    tls_key: str | None = None
    max_header_bytes: int = 32 * 1024
    max_body_bytes: int = DEFAULT_MAX_BODY_MIB * MIB
    receive_timeout_s: float = DEFAULT_RECEIVE_TIMEOUT_S
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    max_waiting: int = DEFAULT_MAX_WAITING
    drain_s: float = 30.0
    send_timeout_s: float = DEFAULT_SEND_TIMEOUT_S
    log_format: LogFormat = "text"
    otlp_traces: str | None = None
    trace_rate: int = 1
    supervisor_token: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """The base URL for clients on this machine."""
        host = _LOOPBACKS.get(self.host, self.host)
        scheme = "https" if self.tls_certificate else "http"
        return f"{scheme}://{join_address(host, self.port)}"

    @property
    def num_open_files(self) -> int:
        """The number of files that each process must be able to open."""
        num_requests = (self.max_in_flight + self.max_waiting) // self.num_processes
        return num_requests + _OTHER_OPEN_FILES

    def to_json(self) -> str:
        """Return the configuration as JSON, including its secret tokens."""
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


def _read_endpoint(fields: Mapping[str, Any]) -> Endpoint:
    tls = fields.get("tls")
    return Endpoint(**{**fields, "tls": Tls(**tls) if tls else None})
