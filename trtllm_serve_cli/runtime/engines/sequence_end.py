"""Find the end of a sequence, for engines that do not detect all end conditions."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine import FinishReason, GenerationRequest
from ..triton.word_lists import ends_with_word


def find_end(
    token_ids: Sequence[int], start: int, request: GenerationRequest
) -> tuple[int, FinishReason | None]:
    """Return the length and the finish reason of the sequence in `token_ids`.

    The finish reason is None if the sequence has not ended. The search begins at index `start`,
    but a stop word may start before this index. The length includes a stop word at the end of the
    sequence, but not the end token.
    """
    for position in range(start, len(token_ids)):
        if token_ids[position] == request.end_id:
            return position, "stop"
        end = position + 1
        if ends_with_word(token_ids, end, request.stop_words):
            return end, "stop"
        if end == request.max_new_tokens:
            return end, "length"
    return len(token_ids), None
