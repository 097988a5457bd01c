"""One line in the server's log for every request that has ended, when that is asked for.

The environment says so: TLLM_LOG_REQUESTS is `yes`, or `prompts` if the prompt may be there, too;
TLLM_LOG_FORMAT is `json` or `text`. Triton's own lines keep Triton's format, which has no JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any


@dataclass(frozen=True, slots=True)
class RequestLog:
    """How requests are logged, if they are."""

    is_on: bool = False
    has_prompts: bool = False
    is_json: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> RequestLog:
        wanted = environ.get("TLLM_LOG_REQUESTS", "")
        return cls(
            is_on=bool(wanted),
            has_prompts=wanted == "prompts",
            is_json=environ.get("TLLM_LOG_FORMAT") == "json",
        )

    def write(self, facts: Mapping[str, Any]) -> None:
        """A line with `facts`; a log that cannot be written keeps no answer back."""
        now = datetime.now(timezone.utc)
        with contextlib.suppress(OSError, ValueError):
            print(self.render(facts, now), file=sys.stderr, flush=True)

    def render(self, facts: Mapping[str, Any], now: datetime) -> str:
        """`facts` as the line."""
        at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if self.is_json:
            line = {"time": at, "level": "info", "event": "request", **facts}
            return json.dumps(line, ensure_ascii=False)
        told = " ".join(f"{name}={_as_word(value)}" for name, value in facts.items())
        return f"I {at} request {told}"


def _as_word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text.isprintable() else text
