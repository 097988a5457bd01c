"""Compute an engine's fingerprint: the hash of everything that determines the engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trtllm_serve_cli.sources.checkpoint import Checkpoint


def fingerprint_of_facts(facts: Mapping[str, Any]) -> str:
    """Return the hash of `facts`, which must be JSON data, as 16 hexadecimal digits.

    Callers include everything that determines the engine (checkpoint, options, tool versions, GPU
    type), but not the model's name or the engine folder, so that models can share an engine.
    """
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def facts_of_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the facts that identify a checkpoint.

    Size and modification time are included because local files can change.
    """
    return {
        "source": checkpoint.source,
        "size_bytes": checkpoint.size_bytes,
        "modified_ns": checkpoint.modified_ns,
    }
