"""Create the sampling arguments that several engine packages share."""

from __future__ import annotations

from typing import Any

from ..engine import GenerationRequest
from ..triton.word_lists import Words

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def random_sampling(request: GenerationRequest) -> dict[str, Any]:
    """Return the arguments top_k and top_p, and temperature if the request sets it.

    An unset top_k becomes 0, and an unset or zero top_p becomes 1.0. These values disable top-k and
    top-p sampling. None is not used, because engine packages interpret None differently.
    """
    arguments: dict[str, Any] = {"top_k": request.top_k or 0, "top_p": request.top_p or 1.0}
    return arguments | copy_set_fields(request, "temperature")


def copy_set_fields(request: GenerationRequest, *names: str) -> dict[str, Any]:
    """Return the names and values of the fields in `names` that the request sets."""
    return {name: value for name in names if (value := getattr(request, name)) is not None}


def single_tokens(words: Words) -> list[int]:
    """Return the tokens of the single-token words."""
    return [word[0] for word in words if len(word) == 1]
