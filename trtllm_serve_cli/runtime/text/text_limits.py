"""Reject texts that are too long to encode.

Encoding takes up to 2 s per megabyte of text. Therefore, texts with too many characters for the
model's context are rejected before encoding, and a request may contain only a few megabytes of
text.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..engine import InvalidRequest
from ..request_check import MAX_WORD_TOKENS

# The maximum length of a short text in characters. A short text usually takes about 1 ms to encode
# and must not wait for longer texts.
LONG_TEXT = 4096
# The longest tokens of common tokenizers are runs of 128 spaces or hyphens.
_MAX_TOKEN_LENGTH = 128
_MAX_WORD_LENGTH = MAX_WORD_TOKENS * _MAX_TOKEN_LENGTH
_MAX_BYTES = 4 * 1024 * 1024
# Typical text has 3 to 5 bytes per token. Heavily indented source code has up to 8.
_BYTES_PER_TOKEN = 8


def find_max_length(max_seq_len: int) -> int:
    """Return the maximum number of characters in `max_seq_len` tokens."""
    return max_seq_len * _MAX_TOKEN_LENGTH


def check_prompt_lengths(name: str, prompts: Sequence[str], max_seq_len: int) -> None:
    """Raise `InvalidRequest` if the prompts are too long.

    The limits are the number of characters per prompt that `max_seq_len` tokens can contain, and
    the total number of bytes. If `max_seq_len` is 0, the context length is unknown, and only the
    total number of bytes is limited. `name` is the input name.
    """
    limit = find_max_length(max_seq_len)
    longest = max(map(len, prompts), default=0)
    if max_seq_len and longest > limit:
        raise InvalidRequest(
            f"{name} has {longest} characters, but the model's context length of {max_seq_len} "
            f"tokens allows at most {limit} characters; send shorter text"
        )
    num_bytes = sum(len(each.encode()) for each in prompts)
    max_bytes = max(_MAX_BYTES, max_seq_len * _BYTES_PER_TOKEN)
    if num_bytes > max_bytes:
        raise InvalidRequest(
            f"{name} is {num_bytes} bytes long, but the maximum is {max_bytes} bytes; send shorter "
            "or fewer texts"
        )


def check_word_lengths(name: str, rows: Sequence[Sequence[str]]) -> None:
    """Raise `InvalidRequest` if the word lists are too long.

    The limits are the number of words per row and the total number of characters in all rows.
    """
    num_words = max(map(len, rows), default=0)
    length = sum(len(word) for words in rows for word in words)
    if num_words > MAX_WORD_TOKENS or length > _MAX_WORD_LENGTH:
        raise InvalidRequest(
            f"{name} has {num_words} words in its longest row and {length} characters in total; "
            f"send at most {MAX_WORD_TOKENS} words per row and {_MAX_WORD_LENGTH} characters in "
            "total"
        )
