"""Store a conversation, and render it as a prompt that fits into the model's context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_serve_cli.client.chat import Message, render_chat
from trtllm_serve_cli.client.model_info import ModelInfo

# Safety factor for the estimated number of tokens in the next prompt.
_MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message and the model's response."""

    message: str
    response: str


def render_turns(info: ModelInfo, system: str | None, turns: Sequence[Turn], message: str) -> str:
    """Return the prompt for `message`, preceded by the system prompt and `turns`.

    Raise `BadInput` if the chat template cannot render the conversation.
    """
    messages: list[Message] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    for turn in turns:
        messages.append({"role": "user", "content": turn.message})
        messages.append({"role": "assistant", "content": turn.response})
    messages.append({"role": "user", "content": message})
    return render_chat(
        info.chat_template or "",
        messages,
        bos_token=info.bos_token,
        eos_token=info.eos_token,
        adds_bos=info.adds_bos,
    )


class Conversation:
    """A conversation with the system prompt and the latest turns that fit into the context.

    The server reports the number of tokens in a prompt only with the response. The size of the next
    prompt is therefore estimated from the tokens per byte of the previous prompt.
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

    def make_prompt(self, message: str, max_tokens: int) -> str:
        """Return the prompt for `message`, and drop the oldest turns until the prompt fits."""
        while True:
            prompt = render_turns(self._info, self.system, self._turns, message)
            if not self._turns or self._fits(prompt, max_tokens):
                return prompt
            self._turns = self._turns[1:]

    def keep(self, turn: Turn) -> None:
        """Append a turn to the conversation."""
        self._turns = (*self._turns, turn)

    def measure(self, prompt: str, num_input_tokens: int | None) -> None:
        """Record how many tokens the server counted in `prompt`."""
        if num_input_tokens:
            self._tokens_per_byte = num_input_tokens / len(prompt.encode())

    def reset(self) -> None:
        """Drop all turns, but keep the system prompt."""
        self._turns = ()

    def _fits(self, prompt: str, max_tokens: int) -> bool:
        if self._info.max_seq_len is None or self._tokens_per_byte is None:
            return True
        num_tokens = len(prompt.encode()) * self._tokens_per_byte * _MARGIN
        return num_tokens + max_tokens <= self._info.max_seq_len
