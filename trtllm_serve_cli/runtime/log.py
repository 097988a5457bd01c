"""What our models and workers write to the server's log.

The environment says how: TLLM_LOG_FORMAT is `json` or `text`. Triton's own lines keep Triton's
format, which has no JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

# This file lies in MODEL/VERSION/tllm_runtime, also of a worker that the model starts.
_MODEL = Path(__file__).parent.parent.parent.name


Level = Literal["I", "W", "E"]
_LEVELS: dict[Level, str] = {"I": "info", "W": "warning", "E": "error"}


def write_log(level: Level, text: str, **fields: Any) -> None:
    """A line for the log: how grave (Triton's letters), of which model, and what is said.

    A log that cannot be written, such as on a full disk, keeps nobody from working.
    """
    with contextlib.suppress(OSError, ValueError):
        is_json = os.environ.get("TLLM_LOG_FORMAT") == "json"
        now = datetime.now(timezone.utc)
        line = (
            render_json(level, text, fields, now) if is_json else render_text(level, text, fields)
        )
        print(line, file=sys.stderr, flush=True)


def write_traceback() -> None:
    """The exception that is being handled, for the log."""
    write_log("E", traceback.format_exc().rstrip())


def render_json(level: Level, text: str, fields: dict[str, Any], now: datetime) -> str:
    """The line as one JSON object; `facts` win over what all lines have."""
    at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"time": at, "level": _LEVELS[level], "model": _MODEL, "message": text, **fields}
    return json.dumps(line, ensure_ascii=False)


def render_text(level: Level, text: str, fields: dict[str, Any]) -> str:
    """The line for people, `facts` as name=value behind it."""
    pairs = "".join(f" {name}={_as_word(value)}" for name, value in fields.items())
    return f"{level} {_MODEL}] {text}{pairs}"


def _as_word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text.isprintable() else text
