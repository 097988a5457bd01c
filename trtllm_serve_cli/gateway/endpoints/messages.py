"""Handle `POST /v1/messages` and `POST /v1/messages/count_tokens` of Anthropic's API.

Sources of the fields and events: `anthropic/types/message.py`, `raw_message_stream_event.py` and
`stop_reason.py` in version 2.12 of the Python package `anthropic`. The package's
`lib/streaming/_messages.py` shows the order of the events.
"""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.gateway.access.admission import admit, process
from trtllm_serve_cli.gateway.endpoints.chat import (
    ChatPlan,
    plan_chat,
    render_prompt,
    require_template,
)
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.generation import Generation
from trtllm_serve_cli.gateway.generation.text_stream import TextDelta
from trtllm_serve_cli.gateway.http import json_response, read_json
from trtllm_serve_cli.gateway.prompts.output_blocks import Block, BlockEvent, BlockReader
from trtllm_serve_cli.gateway.prompts.output_plan import plan_tools
from trtllm_serve_cli.gateway.respond import Writer, respond
from trtllm_serve_cli.gateway.schema.messages import CountTokensBody, MessagesBody
from trtllm_serve_cli.gateway.served_model import LoadedModel
from trtllm_serve_cli.gateway.translate.messages import CHAT_PARAMS, convert_body

_encode = msgspec.json.encode


@dataclasses.dataclass(frozen=True, slots=True)
class MessagePlan:
    """A planned assistant message, which is generated as the chat completion `chat`.

    `max_tokens_reason` is the stop reason to return if the message reaches the token limit. If
    `hides_thinking` is set, the thinking blocks are empty.
    """

    chat: ChatPlan
    max_tokens_reason: str
    hides_thinking: bool


async def create_message(request: Request) -> Response:
    """Generate the assistant's next message."""
    body = await read_json(request, MessagesBody)
    model = request.app.state.models.find_generating(body.model)
    await admit(request, model.name)
    plan = await process(request, partial(plan_message, model, body))
    return await respond(
        request,
        model,
        [plan.chat.generation],
        MessageWriter(model, plan),
        is_streaming=bool(body.stream),
    )


async def count_tokens(request: Request) -> Response:
    """Return the number of tokens in the prompt of a message."""
    body = await read_json(request, CountTokensBody)
    model = request.app.state.models.find_generating(body.model)
    await admit(request, model.name)
    count = await process(request, partial(count_input_tokens, model, body))
    return json_response({"input_tokens": count})


def count_input_tokens(model: LoadedModel, body: CountTokensBody) -> int:
    """Return the number of tokens in the prompt. Raise `ApiError` (400) for an invalid request."""
    template = require_template(model)
    chat = convert_body(body)
    prompt = render_prompt(template, chat, plan_tools(template, chat))
    return len(model.encode(prompt, "messages"))


def plan_message(model: LoadedModel, body: MessagesBody) -> MessagePlan:
    """Plan a message. Raise `ApiError` (400) if the request is not valid.

    If `max_tokens` exceeds the remaining context, the context limits the response, as in
    Anthropic's API.
    """
    try:
        chat = plan_chat(model, convert_body(body))
    except ApiError as error:
        error.rename(CHAT_PARAMS)
        raise
    fields = chat.generation.fields
    room = fields["max_new_tokens"]
    limited = {**fields, "max_new_tokens": min(room, body.max_tokens)}
    generation = dataclasses.replace(chat.generation, fields=limited).rename_params(CHAT_PARAMS)
    return MessagePlan(
        dataclasses.replace(chat, generation=generation),
        "max_tokens" if body.max_tokens <= room else "model_context_window_exceeded",
        hides_thinking=body.thinking is not None and body.thinking.display == "omitted",
    )


class MessageWriter(Writer):
    """Writes a message, as one object or as the events of a stream."""

    def __init__(self, model: LoadedModel, plan: MessagePlan) -> None:
        self._model = model
        self._plan = plan
        self._reader = BlockReader(plan.chat.new_parser())
        self._id = f"msg_{uuid.uuid4().hex}"

    def first_events(self) -> bytes:
        """Return the events that open the message."""
        usage = {"input_tokens": len(self._plan.chat.generation.input_ids), "output_tokens": 0}
        message = self._describe([], usage)
        return _event("message_start", message=message) + _event("ping")

    def events(self, delta: TextDelta) -> bytes:
        """Return the events for new text."""
        return b"".join(map(self._write, self._reader.push(delta)))

    def last_events(self, generation: Generation) -> bytes:
        """Return the events that end the message, with the stop reason and the usage."""
        reader = self._reader
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": reader.stop_sequence}
        usage = self._describe_usage(generation)
        return _event("message_delta", delta=delta, usage=usage) + _event("message_stop")

    def error_events(self, error: ApiError) -> bytes:
        """Return the event for an error that occurred after the start of the stream."""
        return b"event: error\ndata: " + error.anthropic_body() + b"\n\n"

    def finish_reasons(self, generation: Generation) -> tuple[str, ...]:
        """Return the stop reason of the message, for example "tool_use"."""
        reason = self._stop_reason()
        return () if reason is None else (reason,)

    def collect(self, delta: TextDelta) -> None:
        """Add new text to the message."""
        self._reader.push(delta)

    def whole(self, generation: Generation) -> bytes:
        """Return the message as one object."""
        blocks = [self._describe_block(each) for each in self._reader.blocks]
        return _encode(self._describe(blocks, self._describe_usage(generation)))

    def _write(self, event: BlockEvent) -> bytes:
        block, index = event.block, event.block.index
        match event.kind:
            case "opened":
                return _event("content_block_start", index=index, content_block=_empty(block))
            case "added" if block.kind == "reasoning" and self._plan.hides_thinking:
                return b""
            case "added":
                delta = _describe_delta(block, event.text)
                return _event("content_block_delta", index=index, delta=delta)
            case "closed":
                stop = _event("content_block_stop", index=index)
                if block.kind != "reasoning":
                    return stop
                signature = {"type": "signature_delta", "signature": _sign(block)}
                return _event("content_block_delta", index=index, delta=signature) + stop

    def _describe(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model.name,
            "content": content,
            "stop_reason": self._stop_reason(),
            "stop_sequence": self._reader.stop_sequence,
            "usage": usage,
        }

    def _describe_block(self, block: Block) -> dict[str, Any]:
        if block.kind == "text":
            return _empty(block) | {"text": block.text}
        if block.kind == "call":
            return _empty(block) | {"input": _read_input(block.text)}
        thinking = "" if self._plan.hides_thinking else block.text
        return _empty(block) | {"thinking": thinking, "signature": _sign(block)}

    def _describe_usage(self, generation: Generation) -> dict[str, Any]:
        num_output = generation.num_output_tokens
        num_thinking = self._reader.count_reasoning_tokens(self._model.tokenizer)
        num_cached = generation.num_cached_tokens or 0
        return {
            "input_tokens": generation.num_input_tokens - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": num_output,
            "output_tokens_details": {"thinking_tokens": min(num_thinking, num_output)},
        }

    def _stop_reason(self) -> str | None:
        reader = self._reader
        if reader.finish_reason is None:
            return None
        if reader.finish_reason == "length":
            return self._plan.max_tokens_reason
        if reader.stop_sequence is not None:
            return "stop_sequence"
        return "tool_use" if reader.has_calls else "end_turn"


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def _empty(block: Block) -> dict[str, Any]:
    """Return a content block without its text or arguments."""
    if block.kind == "text":
        return {"type": "text", "text": ""}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}


def _describe_delta(block: Block, text: str) -> dict[str, Any]:
    if block.kind == "text":
        return {"type": "text_delta", "text": text}
    if block.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "input_json_delta", "partial_json": text}


def _sign(block: Block) -> str:
    """Return a signature for a thinking block.

    Some clients discard thinking blocks without a signature. The gateway does not verify
    signatures.
    """
    return hashlib.sha256(block.text.encode()).hexdigest()


def _read_input(arguments: str) -> msgspec.Raw | dict[str, Any]:
    """Return the arguments of a tool call, or {} if they are not a valid JSON object.

    For example, the arguments are incomplete if the response reached the token limit.
    """
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
    return msgspec.Raw(arguments.encode())
