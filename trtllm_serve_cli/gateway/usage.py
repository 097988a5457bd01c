"""Describe the number of tokens of a response."""

from __future__ import annotations

from typing import Any


def describe_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Return an object in the format of `usage`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
