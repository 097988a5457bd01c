"""Plan the requests that warm up a server before it is reported as ready.

The first requests after a start are slower than later requests, because chat templates, guide
grammars, kernels, buffers and connections are initialized on first use. The warm-up requests
resemble typical first requests from users.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.gateway.config import GatewayConfig

if TYPE_CHECKING:
    from trtllm_serve_cli.repository.model.store import ImportedModel

_GUIDE_TENSOR = "guided_decoding_guide_type"
_GUIDE_BACKEND = "guided_decoding_backend"
# Maximum prompt length, in words. On a CPU, a longer prompt would delay the start of a large model
# by minutes.
_LONGEST_PROMPT = 512
_NUM_STREAMS = 4
# Number of chat completions per gateway process, if the gateway has several processes. The number
# is high enough for the requests to reach every process with high probability.
_STREAMS_PER_PROCESS = 4
_NUM_TOKENS = 16
_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["name", "count"],
    }
)


@dataclass(frozen=True, slots=True)
class WarmupRequest:
    """A warm-up request to send `num_streams` times in parallel.

    - `model`: model name in the gateway if `is_chat` is set, otherwise the Triton model.
    - `is_chat`: true for a chat completion request to the gateway, false for a text request to
      Triton.
    - `json_schema`: JSON schema for guided decoding, or "" to disable guided decoding.
    """

    name: str
    model: str
    num_words: int
    max_tokens: int = _NUM_TOKENS
    num_streams: int = 1
    is_chat: bool = False
    json_schema: str = ""

    def describe(self) -> str:
        """Return a one-line description of the requests."""
        kind = "chat completion" if self.is_chat else "text request"
        count = f"{self.num_streams} {kind}s" if self.num_streams > 1 else f"1 {kind}"
        return (
            f"{self.name}: {count} to {self.model}, {self.num_words} words per prompt, at most "
            f"{self.max_tokens} tokens per response"
        )


@dataclass(frozen=True, slots=True)
class WarmupModel:
    """The properties of a served model that determine its warm-up requests.

    - `name`: model name in the gateway.
    - `text_model`: model name in Triton.
    - `max_seq_len`: maximum sequence length, or 0 if unknown.
    - `has_guides`: true if the model supports guided decoding with a JSON schema.
    """

    name: str
    text_model: str
    max_seq_len: int = 0
    has_guides: bool = False


def plan_warmup(
    models: Iterable[WarmupModel], gateway: GatewayConfig | None
) -> tuple[WarmupRequest, ...]:
    """Return the warm-up requests in sending order.

    Do not plan requests to a gateway with TLS, because its certificate may not be valid for the
    local address.
    """
    if gateway is not None and gateway.tls_certificate is not None:
        gateway = None
    return tuple(request for model in models for request in _plan_model(model, gateway))


def _plan_model(model: WarmupModel, gateway: GatewayConfig | None) -> Iterator[WarmupRequest]:
    yield WarmupRequest("short prompt", model.text_model, 8)
    if num_words := min(model.max_seq_len // 4, _LONGEST_PROMPT):
        yield WarmupRequest("long prompt", model.text_model, num_words)
    yield WarmupRequest("several streams", model.text_model, 32, num_streams=_NUM_STREAMS)
    if gateway is not None:
        num_processes = gateway.num_processes
        num_streams = 1 if num_processes == 1 else num_processes * _STREAMS_PER_PROCESS
        yield WarmupRequest("chat", model.name, 8, num_streams=num_streams, is_chat=True)
    if model.has_guides:
        is_chat = gateway is not None
        target = model.name if is_chat else model.text_model
        yield WarmupRequest("JSON schema", target, 8, is_chat=is_chat, json_schema=_SCHEMA)


def describe_models(models: Mapping[str, ImportedModel]) -> Iterator[WarmupModel]:
    """Yield a description of each model that generates text.

    `models` maps Triton model names to imported models. Skip embedding models, because the
    readiness probe already runs them.
    """
    # Commands that only read plans do not need these modules and their imports, such as NumPy.
    from trtllm_serve_cli.repository.model.model_repository import open_repository
    from trtllm_serve_cli.repository.model.parameters import load_parameters
    from trtllm_serve_cli.runtime.engines.kinds import is_supported

    for text_model, model in models.items():
        repository = open_repository(model.path)
        if repository.value(model.text_model, "parameters.embedding"):
            continue
        length = repository.value(model.text_model, "parameters.max_seq_len")
        backend = load_parameters()[_GUIDE_BACKEND]
        has_backend = not backend.applies_to(model.engine_kind) or any(
            repository.value(name, place) not in ("", backend.unset)
            for name, place in repository.places(backend)
        )
        has_guides = has_backend and is_supported(_GUIDE_TENSOR, model.engine_kind)
        yield WarmupModel(
            model.name, text_model, int(length) if length.isdecimal() else 0, has_guides
        )


def read_warmup(requests: Iterable[Mapping[str, Any]]) -> tuple[WarmupRequest, ...]:
    """Read the warm-up requests from a plan's decoded JSON."""
    return tuple(WarmupRequest(**each) for each in requests)
