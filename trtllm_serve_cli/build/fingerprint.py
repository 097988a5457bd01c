"""By what an engine is found again: all that would make another engine of it, as one short word."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trtllm_serve_cli.sources.checkpoint import Checkpoint


def fingerprint_of_facts(facts: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that are others when any of `facts`, which are JSON, is another.

    Facts are what the engine follows from (checkpoint, options, versions of the tools, GPU type),
    not how it is called or where it lies.
    """
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def facts_of_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Which checkpoint: a pinned source, or files of the user's as they are now."""
    return {
        "source": checkpoint.source,
        "size_bytes": checkpoint.size_bytes,
        "modified_ns": checkpoint.modified_ns,
    }
