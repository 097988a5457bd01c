"""Build the text responses for the llmapi layout from engine updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine import PerfMetrics, SequenceUpdate
from ..text.detokenize import StreamDecoder, decode_whole
from ..triton.tensors import Array
from .responses import pack_perf_metrics


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A prompt and the options for its responses.

    `fields` contains the fields of the `GenerationRequest`, except `id`. `stops` contains the stop
    words as text.
    """

    fields: dict[str, Any]
    stops: tuple[str, ...] = ()
    exclude_input: bool = False
    returns_finish_reason: bool = False
    returns_stop_reason: bool = False
    returns_log_prob: bool = False


class TextResponseBuilder:
    """A builder for the responses to one prompt.

    If several sequences are generated, the response contains only the most likely one.
    """

    def __init__(
        self,
        request: TextRequest,
        decode: Callable[[list[int]], str],
        arrival_time_ns: int,
        *,
        is_streaming: bool,
    ) -> None:
        self._request = request
        self._decode = decode
        self._arrival_time_ns = arrival_time_ns
        self._is_streaming = is_streaming
        num_sequences = int(request.fields["num_return_sequences"])
        self._tokens: list[list[int]] = [[] for _ in range(num_sequences)]
        self._log_probs = [0.0] * num_sequences
        self._reasons: list[str | None] = [None] * num_sequences
        self._perf = PerfMetrics()
        self._decoder = StreamDecoder(decode)
        self._unsent = ""

    @property
    def is_done(self) -> bool:
        """True if all sequences have ended."""
        return None not in self._reasons

    def add(self, update: SequenceUpdate) -> dict[str, Array] | None:
        """Add an update. Return the response to send now, or None."""
        index = update.sequence_index
        self._tokens[index] += update.token_ids
        self._perf = update.perf or self._perf
        if update.cum_log_prob is not None:
            self._log_probs[index] = update.cum_log_prob
        if update.finish_reason is not None:
            self._reasons[index] = update.finish_reason
        if self._is_streaming:
            return self._build_piece(update.token_ids)
        return self._build_whole() if self.is_done else None

    def end_early(self) -> list[dict[str, Array]]:
        """End all sequences and return the response with the most likely sequence.

        A response to a streaming request contains only the text that was held back. If no text was
        held back, return no response, because all pieces have already been sent.
        """
        if self.is_done:
            return []
        self._reasons = [each or "cancelled" for each in self._reasons]
        if not self._is_streaming:
            return [self._build_whole()]
        text = self._unsent + self._decoder.finish()
        return [self._build(text, 0, None)] if text else []

    def _build_piece(self, token_ids: Sequence[int]) -> dict[str, Array] | None:
        self._unsent += self._decoder.push(token_ids)
        if self.is_done:
            text, stop = self._cut_stop_word(self._unsent + self._decoder.finish(), 0)
            return self._build(text, 0, stop)
        keep = len(self._unsent) - num_held_back(self._unsent, self._request.stops)
        text, self._unsent = self._unsent[:keep], self._unsent[keep:]
        return self._build(text, 0, None) if text else None

    def _build_whole(self) -> dict[str, Array]:
        best = int(np.argmax(self._log_probs))
        text = decode_whole(self._decode, self._tokens[best])
        shown, stop = self._cut_stop_word(text, best)
        if not self._request.exclude_input:
            # Decode the prompt and the text together, so that a space between them is not lost.
            prompt = list(self._request.fields["input_ids"])
            whole = decode_whole(self._decode, [*prompt, *self._tokens[best]])
            shown = whole[: len(whole) - (len(text) - len(shown))]
        return self._build(shown, best, stop)

    def _cut_stop_word(self, text: str, index: int) -> tuple[str, str | None]:
        is_stopped = self._reasons[index] == "stop"
        return cut_stop(text, self._request.stops) if is_stopped else (text, None)

    def _build(self, text: str, index: int, stop: str | None) -> dict[str, Array]:
        request, reason = self._request, self._reasons[index]
        tensors = {"text_output": _strings(text)}
        # Like NVIDIA's model, send the string "None" if a reason is unknown or inapplicable.
        if request.returns_finish_reason:
            tensors["finish_reason"] = _strings(str(reason))
        if request.returns_stop_reason:
            tensors["stop_reason"] = _strings(str(stop))
        if request.returns_log_prob:
            log_prob = self._log_probs[index]
            tensors["cumulative_logprob"] = np.array([log_prob], dtype=np.float32)
        if request.fields.get("return_perf_metrics"):
            tensors |= _perf_outputs(self._perf, self._arrival_time_ns)
        return tensors


def cut_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Remove the longest matching stop word from the end of `text`.

    Return the remaining text and the removed stop word. If `text` does not end with a stop word,
    return `text` and None.
    """
    ending = max((each for each in stops if text.endswith(each)), key=len, default=None)
    return (text, None) if ending is None else (text[: len(text) - len(ending)], ending)


def num_held_back(text: str, stops: Sequence[str]) -> int:
    """Return the number of characters at the end of `text` that may begin a stop word."""
    return max(
        (
            length
            for stop in stops
            for length in range(1, min(len(stop), len(text)) + 1)
            if text.endswith(stop[:length])
        ),
        default=0,
    )


def _perf_outputs(perf: PerfMetrics, arrival_time_ns: int) -> dict[str, Array]:
    """Return the performance metrics with the llmapi layout's names and shapes.

    The shapes have no batch dimension.
    """
    outputs = {
        name: value.reshape(1) for name, value in pack_perf_metrics(perf, arrival_time_ns).items()
    }
    reused = outputs.pop("kv_cache_reused_blocks")
    missed = outputs["kv_cache_alloc_new_blocks"]
    rate = reused / np.maximum(reused + missed, 1)
    return outputs | {
        "kv_cache_reused_block": reused,
        "kv_cache_missed_block": missed,
        "kv_cache_hit_rate": rate.astype(np.float32),
    }


def _strings(text: str) -> Array:
    return np.array([text.encode()], dtype=object)
