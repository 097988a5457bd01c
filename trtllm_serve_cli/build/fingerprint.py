"""Fingerprints of engines: hashes of everything that determines an engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trtllm_serve_cli.sources.checkpoint import Checkpoint


def fingerprint_of_facts(facts: Mapping[str, Any]) -> str:
    """Return a hash of `facts`, which are JSON, as 16 hexadecimal digits.

    Facts are everything that determines the engine (checkpoint, options, tool versions, GPU type),
    but not its name or folder.
    """
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def facts_of_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the facts of a checkpoint: its pinned source, or the state of the user's files."""
    return {
        "source": checkpoint.source,
        "size_bytes": checkpoint.size_bytes,
        "modified_ns": checkpoint.modified_ns,
    }
