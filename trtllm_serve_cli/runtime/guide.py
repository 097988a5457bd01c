"""Validate guided-decoding guides before an engine receives them.

The guide types are the values of the request tensor `guided_decoding_guide_type`.
"""

from __future__ import annotations

import json
from typing import Any

GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag")
# The types whose guides are JSON documents. The type `json` is not included, because it allows any
# JSON output and has no guide.
_JSON_GUIDES = ("json_schema", "structural_tag")
# Maps each guide type except `json` to its argument name in vLLM and TensorRT-LLM's LLM API.
_ARGUMENTS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf_grammar": "grammar",
    "structural_tag": "structural_tag",
}
_MAX_GUIDE_BYTES = 64 * 1024


def find_guide_problem(guide_type: str, guide: str) -> str | None:
    """Return an error message for `guide`, or None if the guide is valid.

    The message starts with a verb. The caller prepends the tensor name.
    """
    if guide_type == "json":
        return None
    if not guide:
        return f"is missing, but the guide type {guide_type} requires a guide; send a guide"
    if (num_bytes := len(guide.encode())) > _MAX_GUIDE_BYTES:
        return f"is {num_bytes} bytes long; send at most {_MAX_GUIDE_BYTES} bytes"
    if "\0" in guide:
        return "contains a NUL character; remove the character"
    if guide_type in _JSON_GUIDES:
        return _find_json_problem(guide)
    return None


def guide_arguments(guide_type: str | None, guide: str) -> dict[str, Any]:
    """Return the `StructuredOutputsParams` or `GuidedDecodingParams` arguments for a guide.

    The result is empty if `guide_type` is None.
    """
    if guide_type is None:
        return {}
    return {"json_object": True} if guide_type == "json" else {_ARGUMENTS[guide_type]: guide}


def _find_json_problem(guide: str) -> str | None:
    try:
        value = json.loads(guide)
    except (ValueError, RecursionError) as error:
        return f"is not valid JSON ({error}); send a JSON object"
    if not isinstance(value, dict | bool):
        return "is not a JSON object; send an object"
    return None
