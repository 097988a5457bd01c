"""A running conversation on a terminal: `tllm infer` without a PROMPT."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from typing import TYPE_CHECKING

from trtllm_serve_cli.cli.infer import render_answer
from trtllm_serve_cli.cli.infer.prompts import check_template
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.target import Target
from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from trtllm_serve_cli.client.conversation import Conversation
    from trtllm_serve_cli.client.generate import GenerateRequest
    from trtllm_serve_cli.client.server import ModelInfo

_PROMPT = "> "
_HELP = """\
/reset        forget what was said
/system TEXT  instructions ahead of all that was said; without TEXT: none
/quit         leave, as Ctrl-D does
Ctrl-C ends an answer. A line that is to start with / has a space in front."""


def converse(
    target: Target, info: ModelInfo, request: GenerateRequest, system: str | None, *, is_live: bool
) -> None:
    """Asks line by line until the user leaves; `request` has the options of every answer."""
    from trtllm_serve_cli.client.conversation import Conversation

    check_template(info)
    conversation = Conversation(info, system)
    _prepare_editing()
    output.notify(f"{target.model}: /help shows the commands, Ctrl-D leaves.")
    while True:
        try:
            line = input(_PROMPT)
            if line.startswith("/"):
                if not _run_command(line, conversation):
                    return
            elif line.strip():
                _send_message(target, request, conversation, line, is_live=is_live)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:  # at the prompt: another line, as in a shell
            print()
        except TllmError as error:
            output.show_error(error)


def _prepare_editing() -> None:
    with contextlib.suppress(ImportError):  # not every Python has it
        import readline  # noqa: F401  (importing it is what gives `input` its editing)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def _run_command(line: str, conversation: Conversation) -> bool:
    """Whether the conversation goes on after this command."""
    command, _, argument = line.partition(" ")
    match command:
        case "/quit" | "/exit" | "/bye":
            return False
        case "/reset" | "/clear":
            conversation.reset()
            output.notify("Forgotten.")
        case "/system":
            conversation.system = argument.strip() or None
            output.notify("The instructions are gone." if conversation.system is None else "Noted.")
        case "/help" | "/?":
            output.notify(_HELP)
        case _:
            output.notify(f"There is no {command}. The commands:\n{_HELP}")
    return True


def _send_message(
    target: Target,
    request: GenerateRequest,
    conversation: Conversation,
    message: str,
    *,
    is_live: bool,
) -> None:
    from trtllm_serve_cli.client.conversation import Turn

    num_before = len(conversation.turns)
    prompt = conversation.make_prompt(message, request.max_tokens)
    if num_dropped := num_before - len(conversation.turns):
        turns = "turn" if num_dropped == 1 else f"{num_dropped} turns"
        output.notify(f"The context is full: the oldest {turns} had to be forgotten.")
    name = f"{request.request_id}-{len(conversation.turns)}"
    request = dataclasses.replace(request, text_input=prompt, request_id=name)
    collected = render_answer.collect_stream(target, request, is_live=is_live)
    completion = collected.completion
    conversation.measure(prompt, completion.num_input_tokens)
    if completion.text:
        conversation.keep(Turn(message, completion.text))
    if not is_live:
        render_answer.show_texts(completion)
    if not collected.was_interrupted:
        render_answer.show_figures(collected, name, was_streamed=is_live)
