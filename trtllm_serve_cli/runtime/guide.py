"""Guided decoding: what a guide may be, told before any engine sees it.

Types are upstream's values of `guided_decoding_guide_type`.
"""

from __future__ import annotations

import json
from typing import Any

GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag")
# `json` allows any JSON value and takes no guide.
_JSON_GUIDES = ("json_schema", "structural_tag")
# Guide type -> what vLLM and TensorRT-LLM's LLM API call it.
_ARGUMENTS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf_grammar": "grammar",
    "structural_tag": "structural_tag",
}
_MAX_GUIDE_BYTES = 64 * 1024


def find_guide_problem(guide_type: str, guide: str) -> str | None:
    """What is wrong with `guide` as far as its text shows; goes on from the tensor's name."""
    if guide_type == "json":
        return None
    if not guide:
        return f"is missing; send the guide that the type {guide_type} needs"
    if (num_bytes := len(guide.encode())) > _MAX_GUIDE_BYTES:
        return f"has {num_bytes} bytes; send at most {_MAX_GUIDE_BYTES}"
    if "\0" in guide:
        return "holds a NUL; leave it out"
    if guide_type in _JSON_GUIDES:
        return _find_json_problem(guide)
    return None


def guide_arguments(guide_type: str | None, guide: str) -> dict[str, Any]:
    """What `StructuredOutputsParams` and `GuidedDecodingParams` take; nothing without a guide."""
    if guide_type is None:
        return {}
    return {"json_object": True} if guide_type == "json" else {_ARGUMENTS[guide_type]: guide}


def _find_json_problem(guide: str) -> str | None:
    try:
        value = json.loads(guide)
    except (ValueError, RecursionError) as error:
        return f"is no JSON: {error}"
    if not isinstance(value, dict | bool):
        return "is no JSON object"
    return None
