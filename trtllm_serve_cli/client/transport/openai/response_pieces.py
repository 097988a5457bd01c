"""Convert chat completions and completions responses to pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_serve_cli.client.generate import Piece

# The data of the event that ends a stream.
DONE = "[DONE]"


@dataclass(slots=True)
class _Sequence:
    is_reasoning: bool = False
    is_finished: bool = False
    cum_log_prob: float = 0.0


@dataclass(slots=True)
class PieceParser:
    """A parser for the parts of one response: the events of a stream, or a whole response.

    If the server returns the reasoning in a separate field, the parser adds it to the text in
    `<think>` tags.
    """

    _sequences: dict[int, _Sequence] = field(default_factory=dict)
    _usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """True if at least one sequence has started and all started sequences have finished."""
        sequences = self._sequences.values()
        return bool(sequences) and all(each.is_finished for each in sequences)

    def parse(self, body: Mapping[str, Any], at_s: float) -> list[Piece]:
        """Return the pieces in one part. Raise `ValueError` if the part is invalid."""
        try:
            usage = body.get("usage")
            if isinstance(usage, dict):
                self._usage = usage
            choices = body.get("choices") or ()
            return [piece for choice in choices for piece in self._parse_choice(choice, at_s)]
        except (AttributeError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def finish(self, at_s: float) -> list[Piece]:
        """Return a list with one piece that contains the token counts.

        Return an empty list if the server did not report token counts.
        """
        num_input, num_output = read_usage(self._usage)
        if num_input is None and num_output is None:
            return []
        counts = Piece("", at_s, num_input_tokens=num_input, num_output_tokens=num_output)
        return [counts]

    def _parse_choice(self, choice: Mapping[str, Any], at_s: float) -> list[Piece]:
        index = int(choice.get("index") or 0)
        sequence = self._sequences.setdefault(index, _Sequence())
        text = self._join_reasoning(sequence, *read_text(choice))
        log_probs = _read_log_probs(choice.get("logprobs"))
        sequence.cum_log_prob += sum(log_probs)
        finish_reason = choice.get("finish_reason")
        sequence.is_finished = sequence.is_finished or finish_reason is not None
        # The first part of a stream contains only the role.
        if not text and not log_probs and finish_reason is None:
            return []
        return [
            Piece(
                text,
                at_s,
                sequence_index=index,
                cum_log_prob=sequence.cum_log_prob if log_probs else None,
                output_log_probs=log_probs,
                finish_reason=finish_reason,
            )
        ]

    def _join_reasoning(self, sequence: _Sequence, reasoning: str, content: str) -> str:
        text = ""
        if reasoning:
            text = reasoning if sequence.is_reasoning else f"<think>\n{reasoning}"
            sequence.is_reasoning = True
        if content and sequence.is_reasoning:
            sequence.is_reasoning = False
            text += "\n</think>\n\n"
        return text + content


def read_text(choice: Mapping[str, Any]) -> tuple[str, str]:
    """Return the reasoning and the content of a choice.

    The reasoning is in the `reasoning_content` field, or in `reasoning` in newer servers.
    `ChatMessage` in tensorrt_llm/serve/openai_protocol.py has both fields.
    """
    if "text" in choice:
        return "", choice["text"] or ""
    message = choice.get("delta") or choice.get("message") or {}
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return reasoning, message.get("content") or ""


def read_usage(usage: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the number of prompt tokens and the number of generated tokens.

    A number is None if the server does not report it.
    """
    counts = (usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
    num_input, num_output = (each if isinstance(each, int) else None for each in counts)
    return num_input, num_output


def _read_log_probs(log_probs: Mapping[str, Any] | None) -> tuple[float, ...]:
    """Return the log probabilities of the tokens in a choice.

    Chat completions and completions return them in different fields.
    """
    if not log_probs:
        return ()
    values = log_probs.get("token_logprobs")
    if values is None:
        values = [each["logprob"] for each in log_probs.get("content") or ()]
    return tuple(float(value) for value in values if value is not None)
