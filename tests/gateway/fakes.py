"""A gateway with a fake engine, for tests of the endpoints."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.testclient import TestClient

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.generation.backend import OnUpdate
from trtllm_serve_cli.gateway.model_registry import ModelRegistry
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.gateway.served_model import LoadedModel
from trtllm_serve_cli.runtime.engine import PromptFacts, SequenceUpdate
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


class LetterTokenizer:
    """A tokenizer with one token per character. The id of a token is its code point."""

    end_id = 0
    pad_id = 0
    vocab_size = 0x110000
    unfinished_ids: frozenset[int] | None = frozenset()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(chr(each) for each in token_ids if each or not skip_special_tokens)

    def decode_all(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        return [self.decode(each, skip_special_tokens=skip_special_tokens) for each in sequences]


Reply = Callable[[int, Mapping[str, Any]], Iterable[SequenceUpdate]]


def generates(text: str, finish: str = "stop") -> Reply:
    """Return a reply that generates `text` in every sequence, one character per step.

    Each token has the log probability -0.5, and the alternatives are the next characters.
    """

    def reply(request_id: int, fields: Mapping[str, Any]) -> Iterable[SequenceUpdate]:
        if fields.get("return_prompt_log_probs"):
            ids = fields["input_ids"][1:]
            facts = PromptFacts(None, (-0.5,) * len(ids), _top(ids, fields))
            yield SequenceUpdate(request_id, 0, prompt=facts)
        letters = text[: fields["max_new_tokens"]]
        reason = finish if letters == text else "length"
        for letter, index in itertools.product(letters, range(fields["num_return_sequences"])):
            yield SequenceUpdate(
                request_id,
                index,
                (ord(letter),),
                log_probs=(-0.5,) if fields.get("return_log_probs") else (),
                top_log_probs=_top([ord(letter)], fields),
            )
        for index in range(fields["num_return_sequences"]):
            yield SequenceUpdate(request_id, index, finish_reason=reason)

    return reply


def _top(token_ids: Sequence[int], fields: Mapping[str, Any]) -> tuple[Any, ...]:
    count = fields.get("num_top_log_probs", 0)
    rows = (tuple((token + each, -0.5 - each) for each in range(count)) for token in token_ids)
    return tuple(rows) if count else ()


def fail(why: str, *, rejected: bool = False) -> Reply:
    """Return a reply that consists of an error."""
    return lambda request_id, fields: [SequenceUpdate(request_id, error=why, rejected=rejected)]


@dataclass
class FakeBackend:
    """A backend that sends the updates of `reply`, one per turn of the event loop.

    With `is_endless`, the updates are repeated until the request is cancelled.
    """

    reply: Reply = field(default_factory=lambda: generates("Hello!"))
    is_open: bool = True
    is_endless: bool = False
    accepts_adapters: bool = True
    submitted: list[Mapping[str, Any]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    _running: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        self.submitted.append(fields)
        request_id = len(self.submitted)
        self._running[request_id] = asyncio.create_task(self._send(request_id, fields, on_update))
        return request_id

    async def _send(self, request_id: int, fields: Mapping[str, Any], on_update: OnUpdate) -> None:
        updates = list(self.reply(request_id, fields))
        for update in itertools.cycle(updates[:-1]) if self.is_endless else updates:
            await asyncio.sleep(0)
            on_update(update)

    def cancel(self, request_id: int) -> None:
        task = self._running.pop(request_id)
        if not task.done():
            self.cancelled.append(request_id)
            task.cancel()

    def open_decoder(
        self, request_id: int, sequence_index: int, *, skips_special_tokens: bool
    ) -> StreamDecoder:
        decode = partial(LetterTokenizer().decode, skip_special_tokens=skips_special_tokens)
        return StreamDecoder(decode)

    async def close(self) -> None:
        pass


class LoadedRegistry(ModelRegistry):
    """A registry whose models do not need a server."""

    def __init__(self, config: GatewayConfig, *models: LoadedModel) -> None:
        super().__init__(config)
        self._models = {model.name: model for model in models}

    def start(self) -> None:
        pass


def make_model(
    backend: FakeBackend, *, engine_kind: str = "openvino", **changes: Any
) -> LoadedModel:
    """Return a model named `demo` with a context of 200 tokens."""
    info = ModelInfo("demo", max_seq_len=200, engine_kind=engine_kind, vocab_size=0x110000)
    template = ChatTemplate(TEMPLATE)
    fields = {"info": info, "template": template, "created": 1, **changes}
    return LoadedModel("demo", tokenizer=LetterTokenizer(), backend=backend, **fields)


def make_client(
    backend: FakeBackend, config: Mapping[str, Any] | None = None, **changes: Any
) -> TestClient:
    """Return a client of a gateway that serves `make_model(backend)`.

    `config` are fields of the gateway's configuration, and `changes` are fields of the model.
    """
    served = ServedModel("demo", "demo", Endpoint())
    settings = GatewayConfig(**{"models": (served,), **(config or {})})
    registry = LoadedRegistry(settings, make_model(backend, **changes))
    return TestClient(build_app(settings, registry), raise_server_exceptions=False)


def read_events(body: str) -> list[str]:
    """Return the data of each event in a stream."""
    assert body.endswith("\n\n")
    return [event.removeprefix("data: ") for event in body.removesuffix("\n\n").split("\n\n")]


def read_named_events(text: str) -> list[dict[str, Any]]:
    """Return the data of the events, and check that each event has the name of its type."""
    assert text.endswith("\n\n")
    events = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events
