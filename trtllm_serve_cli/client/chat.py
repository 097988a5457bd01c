"""Render chat templates in the same way as `utils/chat_template_utils.py` of Transformers.

A template is part of a checkpoint and therefore untrusted code, so it runs in Jinja's sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trtllm_serve_cli.client.generate import Message
from trtllm_serve_cli.errors import BadInput

# Exceptions that rendering can raise: Jinja's errors, and Python's errors if an expression in the
# template fails.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Generation(Extension):
    """The `{% generation %}` block, which marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares `tags` as a plain set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    bos_token: str = "",
    eos_token: str = "",
    adds_bos: bool = False,
    now: Callable[[], datetime] = datetime.now,
) -> str:
    """Return the prompt for the assistant's response to `messages`.

    Each message has the keys `role` and `content`. Set `adds_bos` if the tokenizer adds the BOS
    token. The BOS token at the start of the rendered prompt is then removed, because the model
    would otherwise receive the token twice. Raise `BadInput` if the template is invalid or rejects
    the messages.
    """
    try:
        prompt = (
            _environment(now)
            .from_string(template)
            .render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                tools=None,
                documents=None,
                bos_token=bos_token,
                eos_token=eos_token,
            )
        )
    except _TEMPLATE_FAULTS as error:
        raise BadInput(
            "The model's chat template cannot render this conversation.",
            why=f"{type(error).__name__}: {error}",
            next_step="send the prompt without the template with --raw, or omit --system if the "
            "template does not support system messages",
        ) from error
    return prompt.removeprefix(bos_token) if adds_bos else prompt


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    def strftime_now(pattern: str) -> str:
        return now().strftime(pattern)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `value` as JSON. Unlike Jinja's filter, do not escape HTML characters such as `<`."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
