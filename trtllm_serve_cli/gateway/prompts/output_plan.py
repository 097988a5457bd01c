"""Plan how to split generated text into content, reasoning and tool calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from trtllm_serve_cli.gateway.errors import invalid
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.gateway.prompts.output_parser import OutputParser, PlainParser
from trtllm_serve_cli.gateway.prompts.reasoning import ReasoningParser
from trtllm_serve_cli.gateway.prompts.tools.forced import (
    NO_ARGUMENTS,
    CallListParser,
    NamedCallParser,
    guide_any_call,
    guide_named_call,
)
from trtllm_serve_cli.gateway.prompts.tools.formats import HERMES
from trtllm_serve_cli.gateway.prompts.tools.tool_parser import ToolOptions, new_call_id
from trtllm_serve_cli.gateway.schema.chat import (
    AllowedTools,
    ChatBody,
    FunctionDefinition,
    NamedTool,
    Tool,
)


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tools to render in the prompt and the parser for the response.

    `new_parser` creates a parser for tool calls, or is None if the response cannot contain tool
    calls. `guide` is the type and text of the guide that forces tool calls, or None.
    """

    tools: tuple[dict[str, Any], ...] = ()
    new_parser: Callable[[], OutputParser] | None = None
    guide: tuple[str, str] | None = None


def plan_tools(template: ChatTemplate, body: ChatBody) -> ToolPlan:
    """Plan the tool calls of a request.

    Raise `ApiError` (400) if the tools or the tool choice are not valid, or if the model may call
    tools but its tool call format is unknown.
    """
    _check_tools(body, [each.function for each in body.tools or ()])
    selected, choice = _select_tools(body)
    functions = [each.function for each in selected]
    if not functions or choice == "none":
        return ToolPlan()
    template = template.select(has_tools=True)
    known = template.tool_format
    options = ToolOptions(
        {each.name: _read_schema(each) for each in functions},
        allows_several=body.parallel_tool_calls is not False,
        new_id=known.new_id if known else new_call_id,
    )
    tools = tuple(msgspec.to_builtins(each) for each in selected)
    if isinstance(choice, NamedTool):
        name = choice.function.name
        parser = partial(NamedCallParser, options, name)
        return ToolPlan(tools, parser, guide_named_call(options, name))
    if choice == "required":
        return ToolPlan(tools, partial(CallListParser, options), guide_any_call(options))
    chosen = known if template.supports_tools else HERMES
    if chosen is None:
        raise invalid(
            "The tool call format of this model is unknown. Set `tool_choice` to 'none' or "
            "'required', or ask the operator to start the gateway with --tool-parser.",
            "tool_choice",
            "unsupported_parameter",
        )
    return ToolPlan(tools, partial(chosen.new_parser, options))


def plan_parser(
    template: ChatTemplate, tools: ToolPlan, prompt: str, *, is_guided: bool
) -> tuple[Callable[[], OutputParser], bool]:
    """Return a parser factory, and whether the text must include special tokens.

    A guide constrains the whole response, so guided responses do not contain reasoning, and they
    contain tool calls only if the guide forces them.
    """
    if is_guided:
        return (tools.new_parser if tools.guide else None) or PlainParser, False
    parser: Callable[[], OutputParser] = tools.new_parser or PlainParser
    needs_special_tokens = tools.new_parser is not None
    tags = template.select(has_tools=bool(tools.tools)).reasoning
    end_of_prompt = prompt.rstrip()
    if tags is None or end_of_prompt.endswith(tags.end):
        return parser, needs_special_tokens
    is_open = end_of_prompt.endswith(tags.start)
    return (
        lambda: ReasoningParser(tags, parser(), is_open=is_open),
        needs_special_tokens or tags.are_special,
    )


def _check_tools(body: ChatBody, functions: list[FunctionDefinition]) -> None:
    choice = body.tool_choice
    if not functions:
        if choice not in (None, "none"):
            raise invalid(
                "`tool_choice` is only allowed when `tools` is set. Set `tools`, or omit "
                "`tool_choice`.",
                "tool_choice",
            )
        return
    names = Counter(each.name for each in functions)
    if repeated := [name for name, count in names.items() if count > 1]:
        raise invalid(
            f"`tools` contains several functions named '{repeated[0]}'. Use unique names.",
            "tools",
        )
    for name in _list_chosen(choice):
        if name not in names:
            raise invalid(
                f"`tool_choice` selects the function '{name}', which is not in `tools`. "
                f"Available functions: {', '.join(names)}.",
                "tool_choice",
            )


def _list_chosen(choice: str | NamedTool | AllowedTools | None) -> list[str]:
    """Return the names of the functions that `tool_choice` selects."""
    if isinstance(choice, AllowedTools):
        return [each.function.name for each in choice.allowed_tools.tools]
    return [choice.function.name] if isinstance(choice, NamedTool) else []


def _select_tools(body: ChatBody) -> tuple[list[Tool], str | NamedTool]:
    """Return the tools that the model may call and the tool choice: a mode or one tool."""
    tools, choice = body.tools or [], body.tool_choice or "auto"
    if not isinstance(choice, AllowedTools):
        return tools, choice
    names = _list_chosen(choice)
    return [each for each in tools if each.function.name in names], choice.allowed_tools.mode


def _read_schema(function: FunctionDefinition) -> dict[str, Any]:
    return {"type": "object", **function.parameters} if function.parameters else {**NO_ARGUMENTS}
