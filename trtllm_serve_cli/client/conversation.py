"""Store a conversation and create requests that fit into the model's context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trtllm_serve_cli.client.chat import render_chat
from trtllm_serve_cli.client.generate import GenerateRequest, Message
from trtllm_serve_cli.client.model_info import ModelInfo

# Safety factor for the estimated number of tokens in the next prompt.
_MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation: a user's message and the model's response."""

    message: str
    response: str


def list_messages(system: str | None, turns: Sequence[Turn] = ()) -> tuple[Message, ...]:
    """Return the system prompt and `turns` as messages."""
    messages: list[Message] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    for turn in turns:
        messages.append({"role": "user", "content": turn.message})
        messages.append({"role": "assistant", "content": turn.response})
    return tuple(messages)


def render_turns(info: ModelInfo, system: str | None, turns: Sequence[Turn], message: str) -> str:
    """Return the prompt for `message`, preceded by the system prompt and `turns`.

    Raise `BadInput` if the chat template cannot render the conversation.
    """
    return render_chat(
        info.chat_template or "",
        [*list_messages(system, turns), {"role": "user", "content": message}],
        bos_token=info.bos_token,
        eos_token=info.eos_token,
        adds_bos=info.adds_bos,
    )


class Conversation:
    """A conversation: the system prompt and the latest turns that fit into the context.

    The server reports a prompt's token count only with the response. The size of the next prompt is
    therefore estimated from the tokens per byte of the previous prompt.
    """

    def __init__(self, info: ModelInfo, system: str | None = None) -> None:
        self.system = system
        self._info = info
        self._turns: tuple[Turn, ...] = ()
        self._tokens_per_byte: float | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns that have not been dropped, oldest first."""
        return self._turns

    def make_request(self, request: GenerateRequest, message: str) -> GenerateRequest:
        """Return `request` with the prompt for `message`.

        Drop the oldest turns until the estimated prompt and `max_tokens` fit into the context. If
        the context length or the token count of an earlier prompt is unknown, drop no turns. If the
        server applies the chat template, the request contains the previous messages instead of a
        rendered prompt. Raise `BadInput` if the chat template cannot render the conversation.
        """
        while True:
            planned = self._plan(request, message)
            if not self._turns or self._fits(planned):
                return planned
            self._turns = self._turns[1:]

    def keep(self, turn: Turn) -> None:
        """Append a message and its response to the conversation as a turn."""
        self._turns = (*self._turns, turn)

    def measure(self, request: GenerateRequest, num_input_tokens: int | None) -> None:
        """Record the server's token count for the prompt of `request`.

        The count is used to estimate the size of the next prompt.
        """
        if num_input_tokens:
            self._tokens_per_byte = num_input_tokens / _count_bytes(request)

    def reset(self) -> None:
        """Drop all turns, but keep the system prompt."""
        self._turns = ()

    def _plan(self, request: GenerateRequest, message: str) -> GenerateRequest:
        if self._info.renders_chat:
            history = list_messages(self.system, self._turns)
            return replace(request, text_input=message, history=history)
        prompt = render_turns(self._info, self.system, self._turns, message)
        return replace(request, text_input=prompt)

    def _fits(self, request: GenerateRequest) -> bool:
        if self._info.max_seq_len is None or self._tokens_per_byte is None:
            return True
        num_tokens = _count_bytes(request) * self._tokens_per_byte * _MARGIN
        return num_tokens + request.max_tokens <= self._info.max_seq_len


def _count_bytes(request: GenerateRequest) -> int:
    texts = [request.text_input, *(message["content"] for message in request.history)]
    return sum(len(text.encode()) for text in texts)
