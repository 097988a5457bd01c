"""Write the log lines of models and engine workers to the server's log.

The environment variable TLLM_LOG_FORMAT selects the format: `text` (default) or `json`. It does not
affect Triton's own log lines, because Triton cannot log JSON.
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

# Derive the model name from the path of this file. A model and its engine worker both run the copy
# of this package in MODEL/VERSION/tllm_runtime.
MODEL_NAME = Path(__file__).parent.parent.parent.name


Level = Literal["I", "W", "E"]
_LEVELS: dict[Level, str] = {"I": "info", "W": "warning", "E": "error"}


def write_log(level: Level, text: str, **fields: Any) -> None:
    """Write a log line with the level, the model name, `text` and `fields`.

    `level` is a severity letter as in Triton's log, for example `E` for errors. Ignore write
    errors, because a full disk must not stop the model.
    """
    with contextlib.suppress(OSError, ValueError):
        is_json = os.environ.get("TLLM_LOG_FORMAT") == "json"
        now = datetime.now(timezone.utc)
        line = (
            render_json(level, text, fields, now) if is_json else render_text(level, text, fields)
        )
        print(line, file=sys.stderr, flush=True)


def write_traceback() -> None:
    """Log the traceback of the exception that is being handled."""
    write_log("E", traceback.format_exc().rstrip())


def render_json(level: Level, text: str, fields: dict[str, Any], now: datetime) -> str:
    """Return a log line as a JSON object. `fields` override the standard keys."""
    at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"time": at, "level": _LEVELS[level], "model": MODEL_NAME, "message": text, **fields}
    return json.dumps(line, ensure_ascii=False)


def render_text(level: Level, text: str, fields: dict[str, Any]) -> str:
    """Return a log line as text, with each field appended as `name=value`."""
    pairs = "".join(f" {name}={_as_word(value)}" for name, value in fields.items())
    return f"{level} {MODEL_NAME}] {text}{pairs}"


def _as_word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text.isprintable() else text
