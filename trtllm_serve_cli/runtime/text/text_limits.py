"""Reject texts that are too long to encode.

Encoding 20 MB of text takes 10 s and blocks all other requests to the model's process. Texts with
too many characters for the model's context are therefore rejected before they are encoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..engine import InvalidRequest
from ..request_check import MAX_WORD_TOKENS

# The longest tokens of common tokenizers are runs of 128 spaces or hyphens.
_MAX_TOKEN_LENGTH = 128


def check_prompt_length(name: str, text: str, max_seq_len: int) -> None:
    """Raise `InvalidRequest` if `text` has too many characters for `max_seq_len` tokens.

    `name` is the name of the input. If `max_seq_len` is 0, the context length is unknown, and any
    text is accepted.
    """
    limit = max_seq_len * _MAX_TOKEN_LENGTH
    if max_seq_len and len(text) > limit:
        raise InvalidRequest(
            f"{name} has {len(text)} characters, but the context of {max_seq_len} tokens can "
            f"contain at most {limit}; send a shorter text"
        )


def check_word_lengths(name: str, words: Sequence[str]) -> None:
    """Raise `InvalidRequest` if there are too many words or characters for a word list."""
    length = sum(map(len, words))
    if len(words) > MAX_WORD_TOKENS or length > MAX_WORD_TOKENS * _MAX_TOKEN_LENGTH:
        raise InvalidRequest(
            f"{name} has {len(words)} words with {length} characters; send at most "
            f"{MAX_WORD_TOKENS} tokens"
        )
