"""Convert sequence updates to text and end sequences at stop strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trtllm_serve_cli.runtime.engine import FinishReason, PromptFacts, SequenceUpdate, TokenLogProb
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder


# Not frozen, because `__init__` of a frozen dataclass takes four times as long. An instance is
# created for each sequence update, often for a single token.
@dataclass(slots=True)
class TextDelta:
    """New text of one sequence."""

    # The sequence number.
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    # One log probability per token, or empty.
    log_probs: tuple[float, ...] = ()
    # Set in the last delta.
    finish_reason: FinishReason | None = None
    # The stop string or the stop token id that ended the sequence, or None.
    stop_reason: str | int | None = None
    # The most likely tokens at each position, or empty.
    top_log_probs: tuple[tuple[TokenLogProb, ...], ...] = ()
    # The engine's information about the prompt. Set in at most one delta of a request.
    prompt: PromptFacts | None = None


def merge_deltas(deltas: Iterable[TextDelta]) -> list[TextDelta]:
    """Merge the deltas of each sequence into one delta."""
    merged: dict[int, TextDelta] = {}
    for delta in deltas:
        known = merged.get(delta.index)
        merged[delta.index] = delta if known is None else _merge_pair(known, delta)
    return list(merged.values())


def _merge_pair(earlier: TextDelta, later: TextDelta) -> TextDelta:
    return TextDelta(
        earlier.index,
        earlier.text + later.text,
        earlier.token_ids + later.token_ids,
        earlier.log_probs + later.log_probs,
        later.finish_reason,
        later.stop_reason,
        earlier.top_log_probs + later.top_log_probs,
        earlier.prompt or later.prompt,
    )


@dataclass(slots=True)
class TextSequence:
    """The text of one sequence.

    Text that may be the start of a stop string is held back until later text completes or rules out
    the stop string. The text ends before the stop string or the stop token, unless `includes_stop`
    is set.
    """

    index: int
    decoder: StreamDecoder
    stops: Sequence[str] = ()
    stop_token_ids: frozenset[int] = frozenset()
    includes_stop: bool = False
    finish_reason: FinishReason | None = None
    num_tokens: int = 0
    _held: str = field(default="", repr=False)

    @property
    def is_ended(self) -> bool:
        """True if the last delta has been returned."""
        return self.finish_reason is not None

    def push(self, update: SequenceUpdate) -> TextDelta:
        """Return the new text of an update. Do not call this method after the last delta."""
        reason = update.finish_reason
        ids = self._remove_stop_token(update)
        num_tokens = len(update.token_ids)
        stop_reason: str | int | None = None
        if self.stops:
            text, stop_reason, num_read = self._push_until_stop(ids, is_last=reason is not None)
            if stop_reason is not None:
                reason, num_tokens = "stop", num_read
        else:
            text = self.decoder.push(ids)
            if reason is not None:
                text += self.decoder.finish()
        if reason == "stop" and stop_reason is None and update.token_ids:
            last = update.token_ids[-1]
            stop_reason = last if last in self.stop_token_ids else None
        self.finish_reason = reason
        self.num_tokens += num_tokens
        return TextDelta(
            self.index,
            text,
            update.token_ids[:num_tokens],
            update.log_probs[:num_tokens],
            reason,
            stop_reason,
            update.top_log_probs[:num_tokens],
            update.prompt,
        )

    def _push_until_stop(
        self, token_ids: Sequence[int], *, is_last: bool
    ) -> tuple[str, str | None, int]:
        """Decode tokens up to the end of the first stop string.

        Return the text to emit, the stop string that was found or None, and the number of decoded
        tokens. Tokens are decoded one after another, because an update contains the tokens of
        several engine steps if the updates are read slowly.
        """
        emitted = ""
        for number, token_id in enumerate(token_ids, start=1):
            text, stop = self._cut(self.decoder.push((token_id,)), is_last=False)
            emitted += text
            if stop is not None:
                return emitted, stop, number
        stop = None
        if is_last:
            text, stop = self._cut(self.decoder.finish(), is_last=True)
            emitted += text
        return emitted, stop, len(token_ids)

    def _remove_stop_token(self, update: SequenceUpdate) -> tuple[int, ...]:
        ids = update.token_ids
        is_stopped = update.finish_reason == "stop" and ids and ids[-1] in self.stop_token_ids
        return ids[:-1] if is_stopped and not self.includes_stop else ids

    def _cut(self, new: str, *, is_last: bool) -> tuple[str, str | None]:
        """Return the text to emit, and the stop string that was found or None."""
        text = self._held + new
        if (found := find_stop(text, self.stops)) is not None:
            start, stop = found
            self._held = ""
            return text[: start + len(stop) if self.includes_stop else start], stop
        keep = 0 if is_last else len_of_partial_stop(text, self.stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None


def find_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return the position of the first stop string in `text` and the stop string, or None."""
    matches = [(start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    return min(matches, default=None)


def len_of_partial_stop(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is the start of a stop string.

    Return 0 if no suffix matches. `stops` must not be empty.
    """
    longest = max(map(len, stops)) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(stop.startswith(tail) for stop in stops):
            return length
    return 0
