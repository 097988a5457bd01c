"""Decode JSON from clients and models without lone surrogates, which UTF-8 cannot encode."""

from __future__ import annotations

import json
import re
from typing import Any

# Escape sequences may form surrogate pairs, but only lone surrogates remain in a decoded value.
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def load_json(text: str) -> Any:
    """Return the value of a JSON text, with U+FFFD in place of lone surrogates.

    Raise `ValueError` if the text is not valid JSON, or `RecursionError` if it is nested too
    deeply.
    """
    value = json.loads(text)
    if _ESCAPED.search(text) is None:
        return value
    return json.loads(_SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
