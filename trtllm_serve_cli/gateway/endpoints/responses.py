"""Handle `POST /v1/responses` of OpenAI's API. Responses are not stored.

Sources of the fields and events: `openai/types/responses/response.py` and
`response_stream_event.py` in version 3.54 of the Python package `openai`. The package's
`lib/streaming/responses/_responses.py` shows the order of the events.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from functools import partial
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.gateway.access.admission import admit, process
from trtllm_serve_cli.gateway.endpoints.chat import ChatPlan, plan_chat
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.generation import Generation
from trtllm_serve_cli.gateway.generation.text_stream import TextDelta
from trtllm_serve_cli.gateway.http import read_json
from trtllm_serve_cli.gateway.prompts.output_blocks import Block, BlockEvent, BlockReader
from trtllm_serve_cli.gateway.respond import Writer, respond
from trtllm_serve_cli.gateway.schema.responses import ResponsesBody
from trtllm_serve_cli.gateway.served_model import LoadedModel
from trtllm_serve_cli.gateway.translate.responses import CHAT_PARAMS, convert_body

_encode = msgspec.json.encode
Status = Literal["in_progress", "completed", "incomplete", "failed"]
# Maps output block kinds to the id prefixes of the corresponding response items.
_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}


async def create_response(request: Request) -> Response:
    """Generate a response."""
    body = await read_json(request, ResponsesBody)
    model = request.app.state.models.find_generating(body.model)
    await admit(request, model.name)
    plan = await process(request, partial(plan_response, model, body))
    writer = ResponseWriter(model, body, plan)
    return await respond(request, model, [plan.generation], writer, is_streaming=bool(body.stream))


def plan_response(model: LoadedModel, body: ResponsesBody) -> ChatPlan:
    """Plan a response. Raise `ApiError` (400) if the request is not valid."""
    try:
        plan = plan_chat(model, convert_body(body))
    except ApiError as error:
        error.rename(CHAT_PARAMS)
        raise
    return dataclasses.replace(plan, generation=plan.generation.rename_params(CHAT_PARAMS))


class ResponseWriter(Writer):
    """Writes a response, as one object or as the events of a stream."""

    def __init__(self, model: LoadedModel, body: ResponsesBody, plan: ChatPlan) -> None:
        self._model = model
        self._body = body
        self._reader = BlockReader(plan.new_parser())
        self._suffix = uuid.uuid4().hex
        self._created = int(time.time())
        self._num_events = 0

    def first_events(self) -> bytes:
        """Return the events that open the response."""
        response = self._describe("in_progress")
        return b"".join(
            self._event(kind, response=response)
            for kind in ("response.created", "response.in_progress")
        )

    def events(self, delta: TextDelta) -> bytes:
        """Return the events for new text."""
        return b"".join(map(self._write, self._reader.push(delta)))

    def last_events(self, generation: Generation) -> bytes:
        """Return the final event, which contains the whole response."""
        status = self._status()
        return self._event(f"response.{status}", response=self._describe(status, generation))

    def error_events(self, error: ApiError) -> bytes:
        """Return the events for an error that occurred after the start of the stream."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        described = self._describe("failed", error={"code": code, "message": error.message})
        return self._event(
            "error", code=error.code or code, message=error.message, param=error.param
        ) + self._event("response.failed", response=described)

    def finish_reasons(self, generation: Generation) -> tuple[str, ...]:
        """Return the finish reason of the equivalent chat completion, for example "tool_calls".

        The Responses API has no finish reasons.
        """
        reader = self._reader
        if reader.finish_reason == "stop" and reader.has_calls:
            return ("tool_calls",)
        return () if reader.finish_reason is None else (reader.finish_reason,)

    def collect(self, delta: TextDelta) -> None:
        """Add new text to the response."""
        self._reader.push(delta)

    def whole(self, generation: Generation) -> bytes:
        """Return the response as one object."""
        return _encode(self._describe(self._status(), generation))

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = _encode({"type": kind, "sequence_number": self._num_events, **fields})
        self._num_events += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)

    def _write(self, event: BlockEvent) -> bytes:
        block = event.block
        place = {"item_id": self._item_id(block), "output_index": block.index}
        match event.kind:
            case "opened":
                return self._write_opened(block, place)
            case "added" if block.kind == "call":
                kind = "response.function_call_arguments.delta"
                return self._event(kind, **place, delta=event.text)
            case "added":
                kind = f"response.{_part_type(block)}.delta"
                fields = _text_fields(block)
                return self._event(kind, **place, content_index=0, delta=event.text, **fields)
            case "closed":
                return self._write_closed(block, place)

    def _write_opened(self, block: Block, place: dict[str, Any]) -> bytes:
        item = self._describe_item(block, "in_progress")
        events = self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind != "call":
            part = _describe_part(block, "")
            kind = "response.content_part.added"
            events += self._event(kind, **place, content_index=0, part=part)
        return events

    def _write_closed(self, block: Block, place: dict[str, Any]) -> bytes:
        if block.kind == "call":
            kind = "response.function_call_arguments.done"
            events = self._event(kind, **place, name=block.name, arguments=block.text)
        else:
            kind = f"response.{_part_type(block)}.done"
            fields = _text_fields(block)
            part = _describe_part(block, block.text)
            events = self._event(kind, **place, content_index=0, text=block.text, **fields)
            events += self._event("response.content_part.done", **place, content_index=0, part=part)
        item = self._describe_item(block, self._item_status(block))
        return events + self._event(
            "response.output_item.done", output_index=block.index, item=item
        )

    def _status(self) -> Status:
        return "incomplete" if self._reader.finish_reason == "length" else "completed"

    def _item_status(self, block: Block) -> Status:
        """Return the status of an item.

        The last item is incomplete if the response ended at the token limit or with an error.
        """
        is_last = block is self._reader.blocks[-1]
        return "incomplete" if is_last and self._reader.finish_reason != "stop" else "completed"

    def _item_id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self._suffix}{block.index}"

    def _describe_item(self, block: Block, status: Status) -> dict[str, Any]:
        text = "" if status == "in_progress" else block.text
        item = {"id": self._item_id(block), "status": status}
        if block.kind == "call":
            call = {"call_id": block.id, "name": block.name, "arguments": text}
            return {**item, "type": "function_call", **call}
        content = [] if status == "in_progress" else [_describe_part(block, text)]
        if block.kind == "reasoning":
            return {**item, "type": "reasoning", "summary": [], "content": content}
        return {**item, "type": "message", "role": "assistant", "content": content}

    def _describe(
        self,
        status: Status,
        generation: Generation | None = None,
        error: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        body, defaults = self._body, self._model.sampling_defaults
        is_cut = status == "incomplete"
        blocks = [] if status == "in_progress" else self._reader.blocks
        return {
            "id": f"resp_{self._suffix}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "model": self._model.name,
            "output": [self._describe_item(each, self._item_status(each)) for each in blocks],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": body.reasoning or {"effort": None, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": False,
            "temperature": _first(body.temperature, defaults.temperature, 1.0),
            "text": self._describe_text_config(),
            "tool_choice": self._describe_tool_choice(),
            "tools": body.tools or [],
            "top_logprobs": 0,
            "top_p": _first(body.top_p, defaults.top_p, 1.0),
            "truncation": "disabled",
            "usage": None if generation is None else self._describe_usage(generation),
            "user": body.user,
        }

    def _describe_text_config(self) -> dict[str, Any]:
        config = self._body.text
        format_ = config.format if config else None
        described: dict[str, Any] = {"type": format_.type if format_ else "text"}
        if format_ is not None and format_.type == "json_schema":
            described = msgspec.to_builtins(format_)
        return {"format": described, "verbosity": config.verbosity if config else None}

    def _describe_tool_choice(self) -> Any:
        choice = self._body.tool_choice or "auto"
        if isinstance(choice, str):
            return choice
        if choice.type == "function":
            return {"type": "function", "name": choice.name}
        return {"type": choice.type, "mode": choice.mode, "tools": choice.tools}

    def _describe_usage(self, generation: Generation) -> dict[str, Any]:
        num_input, num_output = generation.num_input_tokens, generation.num_output_tokens
        num_reasoning = self._reader.count_reasoning_tokens(self._model.tokenizer)
        return {
            "input_tokens": num_input,
            "input_tokens_details": {
                "cached_tokens": generation.num_cached_tokens or 0,
                "cache_write_tokens": 0,
            },
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": min(num_reasoning, num_output)},
            "total_tokens": num_input + num_output,
        }


def _first(*values: float | None) -> float | None:
    return next((each for each in values if each is not None), None)


def _part_type(block: Block) -> str:
    return "reasoning_text" if block.kind == "reasoning" else "output_text"


def _describe_part(block: Block, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": _part_type(block), "text": text}
    return part if block.kind == "reasoning" else {**part, "annotations": [], "logprobs": []}


def _text_fields(block: Block) -> dict[str, Any]:
    """Return the additional fields of a text event, or {} for a reasoning event."""
    return {} if block.kind == "reasoning" else {"logprobs": []}
