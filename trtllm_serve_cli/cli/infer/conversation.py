"""Run an interactive conversation when `tllm infer` is called on a terminal without a PROMPT."""

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
    from trtllm_serve_cli.client.model_info import ModelInfo

_PROMPT = "> "
_HELP = """\
/reset        Clear the conversation.
/system TEXT  Set the system prompt. Without TEXT, clear the system prompt.
/quit         Exit. Ctrl-D also exits.
Ctrl-C cancels a response. To start a message with /, put a space before it."""


def converse(
    target: Target, info: ModelInfo, request: GenerateRequest, system: str | None, *, is_live: bool
) -> None:
    """Send each line of user input as a message, or run it as a command, until the user exits.

    The options in `request` apply to every message. Raise `BadInput` if neither the model nor the
    server has a chat template.
    """
    from trtllm_serve_cli.client.conversation import Conversation

    check_template(info)
    conversation = Conversation(info, system)
    _prepare_editing()
    output.notify(f"{target.model}: enter /help to list the commands, or press Ctrl-D to exit.")
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
        except KeyboardInterrupt:  # as in a shell, Ctrl-C starts a new line
            print()
        except TllmError as error:
            output.show_error(error)


def _prepare_editing() -> None:
    with contextlib.suppress(ImportError):  # some Python builds lack readline
        import readline  # noqa: F401  (the import enables line editing in `input`)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def _run_command(line: str, conversation: Conversation) -> bool:
    """Run a command such as /reset and return whether the conversation should continue."""
    command, _, argument = line.partition(" ")
    match command:
        case "/quit" | "/exit" | "/bye":
            return False
        case "/reset" | "/clear":
            conversation.reset()
            output.notify("Conversation cleared.")
        case "/system":
            conversation.system = argument.strip() or None
            output.notify(
                "System prompt cleared." if conversation.system is None else "System prompt set."
            )
        case "/help" | "/?":
            output.notify(_HELP)
        case _:
            output.notify(f"Unknown command {command}. Commands:\n{_HELP}")
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
    request = conversation.make_request(request, message)
    if num_dropped := num_before - len(conversation.turns):
        turns = "turn was" if num_dropped == 1 else f"{num_dropped} turns were"
        output.notify(f"The context is full: the oldest {turns} dropped.")
    name = f"{request.request_id}-{len(conversation.turns)}"
    request = dataclasses.replace(request, request_id=name)
    collected = render_answer.collect_stream(target, request, is_live=is_live)
    completion = collected.completion
    conversation.measure(request, completion.num_input_tokens)
    if completion.text:
        conversation.keep(Turn(message, completion.text))
    if not is_live:
        render_answer.show_texts(completion)
    if not collected.was_interrupted:
        render_answer.show_figures(collected, request, was_streamed=is_live)
