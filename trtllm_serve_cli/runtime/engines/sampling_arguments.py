"""Create the sampling arguments that have the same names in several engine packages."""

from __future__ import annotations

from typing import Any

from ..engine import GenerationRequest
from ..triton.word_lists import Words

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def random_sampling(request: GenerationRequest) -> dict[str, Any]:
    """Return top_k, top_p and, if the request sets it, the temperature.

    Limits that the request does not set are turned off, because packages interpret None
    differently.
    """
    arguments: dict[str, Any] = {"top_k": request.top_k or 0, "top_p": request.top_p or 1.0}
    return arguments | copy_set_fields(request, "temperature")


def copy_set_fields(request: GenerationRequest, *names: str) -> dict[str, Any]:
    """Return the given fields that the request sets."""
    return {name: value for name in names if (value := getattr(request, name)) is not None}


def single_tokens(words: Words) -> list[int]:
    """Return the token of each word that consists of a single token."""
    return [word[0] for word in words if len(word) == 1]
