"""Build the responses for the vllm layout from engine updates.

Without streaming, one response contains all sequences. A streamed response contains the new text,
token counts and log probabilities of each sequence. Source: `create_response` in
src/utils/request.py in triton-inference-server/vllm_backend@8de0c14.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..engine import GenerationRequest, SequenceUpdate
from ..text.detokenize import StreamDecoder, decode_whole
from ..triton.tensors import Array
from .llmapi_response import cut_stop, num_held_back

Decode = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The optional outputs that the client has requested.

    Each field is true if the request sets the `return_NAME` input, where NAME is the field name.
    """

    finish_reason: bool = False
    cumulative_logprob: bool = False
    logprobs: bool = False
    num_input_tokens: bool = False
    num_output_tokens: bool = False


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A prompt and the options for its responses.

    `fields` contains the fields of the `GenerationRequest`, except `id`. `prompt` is empty if the
    responses do not contain the prompt.
    """

    fields: dict[str, Any]
    prompt: str = ""
    stops: tuple[str, ...] = ()
    keeps_stop_word: bool = False
    skips_special_tokens: bool = True
    has_log_probs: bool = False
    outputs: Outputs = Outputs()


@dataclass(slots=True)
class _Sequence:
    """A sequence that is being generated, with its unsent text."""

    decoder: StreamDecoder
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    unsent_text: str = ""
    cumulative_log_prob: float = 0.0
    reason: str | None = None


class TextResponseBuilder:
    """A builder for the responses to one prompt."""

    def __init__(self, request: TextRequest, decode: Decode, *, is_streaming: bool) -> None:
        self._request = request
        self._decode = decode
        self._is_streaming = is_streaming
        num_sequences = int(request.fields["num_return_sequences"])
        self._sequences = [_Sequence(StreamDecoder(decode)) for _ in range(num_sequences)]
        # The rank is known only for greedy decoding, which always selects the most likely token.
        self._rank = 1 if GenerationRequest(id=0, **request.fields).is_greedy else None

    @property
    def is_done(self) -> bool:
        """True if all sequences have ended."""
        return all(each.reason is not None for each in self._sequences)

    def add(self, update: SequenceUpdate) -> dict[str, Array] | None:
        """Add an update. Return the response to send now, or None."""
        sequence = self._sequences[update.sequence_index]
        sequence.tokens += update.token_ids
        sequence.log_probs += update.log_probs
        if update.cum_log_prob is not None:
            sequence.cumulative_log_prob = update.cum_log_prob
        if update.finish_reason is not None:
            sequence.reason = update.finish_reason
        if not self._is_streaming:
            return self._build_whole() if self.is_done else None
        piece = self._piece(sequence, update.token_ids)
        if not piece and sequence.reason is None:
            return None
        return self._build([piece if each is sequence else "" for each in self._sequences])

    def end_early(self) -> list[dict[str, Array]]:
        """End all sequences and return the response that contains them.

        A response to a streaming request contains only the text that was held back. If no text was
        held back, return no response, because all pieces have already been sent.
        """
        if self.is_done:
            return []
        for sequence in self._sequences:
            sequence.reason = sequence.reason or "abort"
        if not self._is_streaming:
            return [self._build_whole()]
        texts = [self._piece(each, ()) for each in self._sequences]
        return [self._build(texts)] if any(texts) else []

    def _piece(self, sequence: _Sequence, token_ids: Sequence[int]) -> str:
        """Return the new text of a sequence.

        Hold back characters at the end of the text that may begin a stop word.
        """
        sequence.unsent_text += sequence.decoder.push(token_ids)
        if sequence.reason is not None:
            text = self._cut(sequence.unsent_text + sequence.decoder.finish(), sequence)
            sequence.unsent_text = ""
            return text
        held = (
            0
            if self._request.keeps_stop_word
            else num_held_back(sequence.unsent_text, self._request.stops)
        )
        keep = len(sequence.unsent_text) - held
        text, sequence.unsent_text = sequence.unsent_text[:keep], sequence.unsent_text[keep:]
        return text

    def _whole(self, sequence: _Sequence) -> str:
        """Return the whole text of a sequence.

        The text starts with the prompt, unless the client excluded it.
        """
        text = decode_whole(self._decode, sequence.tokens)
        if prompt := self._request.prompt:
            # Decode the prompt and the text together, so that a space between them is not lost.
            input_ids = list(self._request.fields["input_ids"])
            before = decode_whole(self._decode, input_ids)
            whole = decode_whole(self._decode, [*input_ids, *sequence.tokens])
            if whole.startswith(before):
                text = whole[len(before) :]
            return prompt + self._cut(text, sequence)
        return self._cut(text, sequence)

    def _cut(self, text: str, sequence: _Sequence) -> str:
        is_cut = sequence.reason == "stop" and not self._request.keeps_stop_word
        return cut_stop(text, self._request.stops)[0] if is_cut else text

    def _build_whole(self) -> dict[str, Array]:
        """Return the complete response to a non-streaming request."""
        return self._build([self._whole(each) for each in self._sequences])

    def _build(self, texts: Sequence[str]) -> dict[str, Array]:
        """Return a response with `texts` and mark the tokens of all sequences as sent."""
        requested, sequences = self._request.outputs, self._sequences
        tensors = {"text_output": _as_strings(texts)}
        if requested.finish_reason:
            tensors["finish_reason"] = _as_strings([str(each.reason) for each in sequences])
        if requested.cumulative_logprob:
            log_probs = [each.cumulative_log_prob for each in sequences]
            tensors["cumulative_logprob"] = np.array(log_probs, dtype=np.float32)
        if requested.logprobs:
            tensors["logprobs"] = _as_strings([self._list_log_probs(each) for each in sequences])
        if requested.num_input_tokens:
            num_tokens = len(self._request.fields["input_ids"])
            tensors["num_input_tokens"] = np.array([num_tokens], dtype=np.uint32)
        if requested.num_output_tokens:
            counts = [len(each.tokens) for each in sequences]
            tensors["num_output_tokens"] = np.array(counts, dtype=np.uint32)
        for each in sequences:
            each.tokens, each.log_probs = [], []
        return tensors

    def _list_log_probs(self, sequence: _Sequence) -> str:
        """Return the log probabilities of the unsent tokens as JSON.

        The JSON is `null` if the sampling parameters do not contain `logprobs`. Unlike vLLM's
        outputs, it contains only the generated tokens, without alternatives.
        """
        if not self._request.has_log_probs:
            return "null"
        steps = [
            {token: {
                "logprob": log_prob, "rank": self._rank, "decoded_token": self._decode([token]),
            }}
            for token, log_prob in zip(sequence.tokens, sequence.log_probs, strict=False)
        ]  # fmt: skip
        return json.dumps(steps)


def _as_strings(texts: Sequence[str]) -> Array:
    return np.array([text.encode() for text in texts], dtype=object)
