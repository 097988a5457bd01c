"""Render chat templates as `utils/chat_template_utils.py` in Transformers does.

Templates are untrusted code from checkpoints, so they run in a sandbox with time and memory limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from threading import get_ident
from typing import Any

import jinja2

from trtllm_serve_cli.client.templates.sandbox import LimitedSandbox
from trtllm_serve_cli.errors import BadInput

# Template variables that `render_chat` sets. `variables` cannot override them.
RESERVED_VARIABLES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")
)
# Exceptions that rendering can raise: Jinja's errors, and built-in exceptions from expressions that
# fail or from templates that are nested too deeply.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
# Marker for the end of the final message in a rendered prompt, as in Transformers. If the marker's
# trailing space is missing from the prompt, the template strips trailing spaces from messages.
_END_OF_MESSAGE = "CONTINUE_FINAL_MESSAGE_TAG "


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    adds_generation_prompt: bool = True,
    continues_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
    bos_token: str = "",
    eos_token: str = "",
    adds_bos: bool = False,
    now: Callable[[], datetime] = datetime.now,
) -> str:
    """Return the prompt for the assistant's response to `messages`.

    Each message has at least the keys `role` and `content`. `variables` are additional variables
    for the template. If `continues_final_message` is set, the prompt ends with the content of the
    last message, so that the model continues this message.

    If the tokenizer adds the BOS token, set `adds_bos` to remove the token from the start of the
    rendered prompt. Otherwise, the model would receive the token twice. Raise `BadInput` if the
    template is invalid, rejects the messages, takes more CPU time than
    `templates.budget.TIME_LIMIT_S`, creates too much text, or omits the message to continue.
    """
    copied = [dict(message) for message in messages]
    if continues_final_message:
        copied[-1]["content"] = f"{copied[-1].get('content') or ''}{_END_OF_MESSAGE}"

    def strftime_now(pattern: str) -> str:
        return now().strftime(pattern)

    context = {
        "strftime_now": strftime_now,
        **(variables or {}),
        "messages": copied,
        "tools": tools,
        "documents": documents,
        "add_generation_prompt": adds_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    try:
        environment, compiled = _compile(template, get_ident())
        prompt = environment.render(compiled, context)
        if continues_final_message:
            prompt = _cut_after_message(prompt)
    except _TEMPLATE_FAULTS as error:
        raise BadInput(
            "The model's chat template cannot render this conversation.",
            why=f"{type(error).__name__}: {error}",
            next_step="add --raw to send the prompt without the template, or omit --system if the "
            "template does not support system messages",
        ) from error
    return prompt.removeprefix(bos_token) if adds_bos else prompt


@lru_cache(maxsize=64)
def _compile(source: str, thread: int) -> tuple[LimitedSandbox, jinja2.Template]:
    """Compile a template.

    `thread` is part of the cache key, because a `LimitedSandbox` serves only one thread.
    """
    environment = LimitedSandbox()
    return environment, environment.from_string(source)


def _cut_after_message(prompt: str) -> str:
    """Return the prompt up to the end of the final message.

    If the template strips trailing spaces from messages, also strip them from the returned prompt.
    Raise `ValueError` if the template omits the final message.
    """
    end = prompt.rfind(_END_OF_MESSAGE.rstrip())
    if end < 0:
        raise ValueError("the template omits the final message, which the model should continue")
    is_exact = prompt.startswith(_END_OF_MESSAGE, end)
    return prompt[:end] if is_exact else prompt[:end].rstrip()
