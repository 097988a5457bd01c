"""Handle `POST /v1/chat/completions`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.gateway.access.admission import admit, process
from trtllm_serve_cli.gateway.errors import invalid
from trtllm_serve_cli.gateway.generation.generation import Generation, GenerationPlan
from trtllm_serve_cli.gateway.generation.text_stream import TextDelta
from trtllm_serve_cli.gateway.http import read_json
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.gateway.prompts.messages import check_messages, convert_message
from trtllm_serve_cli.gateway.prompts.output_parser import (
    OutputDelta,
    OutputParser,
    ToolCallDelta,
)
from trtllm_serve_cli.gateway.prompts.output_plan import ToolPlan, plan_parser, plan_tools
from trtllm_serve_cli.gateway.respond import Writer, respond
from trtllm_serve_cli.gateway.sampling import (
    apply_defaults,
    plan_generation,
    read_guide,
    require_feature,
)
from trtllm_serve_cli.gateway.schema.chat import ChatBody
from trtllm_serve_cli.gateway.served_model import LoadedModel
from trtllm_serve_cli.gateway.usage import describe_usage

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A planned chat completion: the engine request and the response settings.

    If `repeats_usage` is set, each chunk contains the token counts of its choice so far.
    `new_parser` returns a parser for the tool calls and the reasoning of one sequence.
    """

    generation: GenerationPlan
    returns_log_probs: bool
    returns_token_ids: bool
    includes_usage: bool
    repeats_usage: bool
    new_parser: Callable[[], OutputParser]


async def create_chat_completion(request: Request) -> Response:
    """Generate the assistant's next message."""
    body = await read_json(request, ChatBody)
    model = request.app.state.models.find_generating(body.model)
    await admit(request, model.name, body.num_choices)
    plan = await process(request, partial(_check_and_plan, model, body))
    writer = ChatWriter(model, plan)
    return await respond(request, model, [plan.generation], writer, is_streaming=bool(body.stream))


def _check_and_plan(model: LoadedModel, body: ChatBody) -> ChatPlan:
    check_messages(body.messages)
    if body.parallel_tool_calls is not None and not body.tools:
        raise invalid(
            "`parallel_tool_calls` is only allowed when `tools` is set. Set `tools`, or omit "
            "`parallel_tool_calls`.",
            "parallel_tool_calls",
        )
    return plan_chat(model, body)


def plan_chat(model: LoadedModel, body: ChatBody) -> ChatPlan:
    """Plan a chat completion. Raise `ApiError` (400) if the request is not valid."""
    template = require_template(model)
    body = apply_defaults(model, body)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid(
            "`top_logprobs` is only allowed when `logprobs` is true. Set `logprobs` to true.",
            "top_logprobs",
        )
    tools = plan_tools(template, body)
    if tools.guide is not None:
        require_feature(model, "tool_choice that forces a call")
    prompt = render_prompt(template, body, tools)
    guide = tools.guide or read_guide(body)
    new_parser, needs_special_tokens = plan_parser(
        template, tools, prompt, is_guided=guide is not None
    )
    input_ids = model.encode(prompt, body.PROMPT)
    generation = plan_generation(
        model,
        body,
        input_ids,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        num_sequences=body.num_choices,
        returns_log_probs=bool(body.logprobs),
        guide=guide,
        skips_special_tokens=False if needs_special_tokens else None,
        num_top_log_probs=body.top_logprobs or 0,
    )
    return ChatPlan(
        generation,
        bool(body.logprobs),
        bool(body.return_token_ids),
        body.includes_usage,
        body.repeats_usage,
        new_parser,
    )


def require_template(model: LoadedModel) -> ChatTemplate:
    """Return the model's chat template. Raise `ApiError` (400) if the model has no template."""
    if model.template is None:
        raise invalid(
            f"The model '{model.name}' has no chat template. Use /v1/completions, or ask the "
            "operator to start the gateway with --chat-template FILE.",
            "messages",
        )
    return model.template


def render_prompt(template: ChatTemplate, body: ChatBody, tools: ToolPlan) -> str:
    """Return the prompt of a chat completion.

    Raise `ApiError` (400) if the messages or the template settings are invalid.
    """
    return template.render(
        [convert_message(each) for each in body.messages],
        tools=tools.tools or None,
        documents=body.documents,
        adds_generation_prompt=body.add_generation_prompt,
        continues_final_message=body.continue_final_message,
        variables=_template_variables(body),
    )


def _template_variables(body: ChatBody) -> dict[str, Any]:
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
        if body.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
    return variables


@dataclass(slots=True)
class _Choice:
    """The state of one sequence and, unless the response is a stream, its message so far.

    `tool_calls` maps the index of each tool call to its parts.
    """

    parser: OutputParser
    num_tokens: int = 0
    has_calls: bool = False
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, list[ToolCallDelta]] = field(default_factory=dict)
    log_probs: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def collect(self, output: OutputDelta) -> None:
        """Add new text to the message."""
        self.content.append(output.content)
        self.reasoning.append(output.reasoning)
        for call in output.tool_calls:
            self.tool_calls.setdefault(call.index, []).append(call)


class ChatWriter(Writer):
    """Writes the response to a chat completion request, as one object or as chunks of a stream."""

    def __init__(self, model: LoadedModel, plan: ChatPlan) -> None:
        self._model = model
        self._plan = plan
        self._choices = [_Choice(plan.new_parser()) for _ in range(plan.generation.num_sequences)]
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        # Pre-encode the fields that are the same in all chunks.
        head = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if plan.includes_usage else b"]}\n\n"

    def push(self, delta: TextDelta) -> OutputDelta:
        """Parse newly generated text, update the state of its choice, and return the output."""
        choice = self._choices[delta.index]
        output = choice.parser.push(delta.text, is_last=delta.finish_reason is not None)
        choice.num_tokens += len(delta.token_ids)
        choice.has_calls = choice.has_calls or bool(output.tool_calls)
        if delta.finish_reason is not None:
            choice.stop_reason = delta.stop_reason
            is_call = choice.has_calls and delta.finish_reason == "stop"
            choice.finish_reason = "tool_calls" if is_call else delta.finish_reason
        return output

    def first_events(self) -> bytes:
        """Return the first chunk of each choice, which contains the message role."""
        delta = {"role": "assistant", "content": ""}
        head = self._head
        if self._plan.returns_token_ids:
            ids = _encode(self._plan.generation.input_ids)
            head = head.replace(b',"choices":[', b',"prompt_token_ids":' + ids + b',"choices":[')
        return b"".join(
            self._chunk(index, delta, head=head if index == 0 else None)
            for index in range(len(self._choices))
        )

    def events(self, delta: TextDelta) -> bytes:
        """Return the chunks for new text of one sequence."""
        output = self.push(delta)
        index, choice = delta.index, self._choices[delta.index]
        log_probs = self._describe_log_probs(delta)
        ids = delta.token_ids if self._plan.returns_token_ids else ()
        is_plain = not (output.reasoning or output.tool_calls or choice.finish_reason or ids)
        if is_plain and log_probs is None:
            return self._content_chunk(index, output.content) if output.content else b""
        parts: list[dict[str, Any]] = []
        if output.reasoning:
            parts.append({"delta": {"reasoning_content": output.reasoning}})
        if output.content or log_probs is not None:
            parts.append({"delta": {"content": output.content}, "log_probs": log_probs})
        for call in output.tool_calls:
            parts.append({"delta": {"tool_calls": [_describe_call_delta(call)]}})
        if choice.finish_reason is not None:
            ends = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
            parts.append({"delta": {}, **ends})
        if ids:
            # Send a chunk even if the new tokens have not produced text yet.
            parts = parts or [{"delta": {}}]
            parts[0]["token_ids"] = ids
        return b"".join(self._chunk(index, **part) for part in parts)

    def last_events(self, generation: Generation) -> bytes:
        """Return the usage chunk, if the client requested it, and the `[DONE]` event."""
        events = b""
        if self._plan.includes_usage:
            usage = describe_usage(
                generation.num_input_tokens,
                generation.num_output_tokens,
                generation.num_cached_tokens,
            )
            events = self._head + b'],"usage":' + _encode(usage) + b"}\n\n"
        return events + b"data: [DONE]\n\n"

    def _content_chunk(self, index: int, text: str) -> bytes:
        return b"".join(
            (
                self._head,
                b'{"index":%d,"delta":{"content":' % index,
                _encode(text),
                b'},"logprobs":null,"finish_reason":null}',
                self._end(index),
            )
        )

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        log_probs: Sequence[Mapping[str, Any]] | None = None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
        token_ids: Sequence[int] = (),
        head: bytes | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": None if log_probs is None else {"content": log_probs, "refusal": None},
            "finish_reason": finish_reason,
        }
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        if token_ids:
            choice["token_ids"] = token_ids
        return (head or self._head) + _encode(choice) + self._end(index)

    def _end(self, index: int) -> bytes:
        """Return the end of a chunk, including the usage of its choice if requested."""
        if not self._plan.repeats_usage:
            return self._tail
        num_input_tokens = len(self._plan.generation.input_ids)
        usage = describe_usage(num_input_tokens, self._choices[index].num_tokens)
        return b'],"usage":' + _encode(usage) + b"}\n\n"

    def _describe_log_probs(self, delta: TextDelta) -> list[dict[str, Any]] | None:
        if not self._plan.returns_log_probs or not delta.token_ids:
            return None
        tops = delta.top_log_probs or ((),) * len(delta.token_ids)
        entries = []
        for token_id, log_prob, top in zip(delta.token_ids, delta.log_probs, tops, strict=False):
            alternatives = [self._describe_log_prob(*each) for each in top]
            described = self._describe_log_prob(token_id, log_prob)
            entries.append({**described, "top_logprobs": alternatives})
        return entries

    def _describe_log_prob(self, token_id: int, log_prob: float) -> dict[str, Any]:
        token = self._model.tokenizer.decode([token_id], skip_special_tokens=False)
        return {"token": token, "logprob": log_prob, "bytes": list(token.encode())}

    def finish_reasons(self, generation: Generation) -> tuple[str, ...]:
        """Return the finish reason of each finished choice, for example "tool_calls"."""
        reasons = (choice.finish_reason for choice in self._choices)
        return tuple(reason for reason in reasons if reason is not None)

    def collect(self, delta: TextDelta) -> None:
        """Add new text to the body of a non-streaming response."""
        choice = self._choices[delta.index]
        choice.collect(self.push(delta))
        choice.log_probs += self._describe_log_probs(delta) or []
        choice.token_ids += delta.token_ids

    def whole(self, generation: Generation) -> bytes:
        """Return the body of a non-streaming response."""
        ids = self._plan.generation.input_ids
        return _encode(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._created,
                "model": self._model.name,
                "choices": [
                    self._describe_choice(index, choice)
                    for index, choice in enumerate(self._choices)
                ],
                "usage": describe_usage(
                    generation.num_input_tokens,
                    generation.num_output_tokens,
                    generation.num_cached_tokens,
                ),
                "system_fingerprint": self._model.fingerprint,
                "service_tier": None,
                **({"prompt_token_ids": ids} if self._plan.returns_token_ids else {}),
            }
        )

    def _describe_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        content, reasoning = "".join(choice.content), "".join(choice.reasoning)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content or (None if choice.has_calls or reasoning else ""),
            "refusal": None,
        }
        if reasoning:
            message["reasoning_content"] = reasoning
        if choice.has_calls:
            message["tool_calls"] = list(map(_describe_call, choice.tool_calls.values()))
        log_probs = {"content": choice.log_probs, "refusal": None}
        described = {
            "index": index,
            "message": message,
            "logprobs": log_probs if self._plan.returns_log_probs else None,
            "finish_reason": choice.finish_reason,
        }
        if choice.stop_reason is not None:
            described["stop_reason"] = choice.stop_reason
        if self._plan.returns_token_ids:
            described["token_ids"] = choice.token_ids
        return described


def _describe_call(parts: Sequence[ToolCallDelta]) -> dict[str, Any]:
    """Return a complete tool call. Only its first part contains the id and the name."""
    arguments = "".join(part.arguments for part in parts)
    function = {"name": parts[0].name, "arguments": arguments}
    return {"id": parts[0].id, "type": "function", "function": function}


def _describe_call_delta(call: ToolCallDelta) -> dict[str, Any]:
    described: dict[str, Any] = {"index": call.index}
    function: dict[str, Any] = {"arguments": call.arguments}
    if call.id is not None:
        described |= {"id": call.id, "type": "function"}
        function = {"name": call.name, **function}
    return described | {"function": function}
