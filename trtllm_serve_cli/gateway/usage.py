"""Describe the token usage of a response."""

from __future__ import annotations

from typing import Any


def describe_usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None
) -> dict[str, Any]:
    """Return the `usage` object of an OpenAI response.

    `cached_tokens` is None if the engine does not report how many prompt tokens were cached.
    """
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    # If the number is unknown, omit `prompt_tokens_details`, because OpenAI's specification does
    # not allow null for this field.
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return usage
