"""Compute an engine's fingerprint, a hash of all inputs that affect the engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trtllm_serve_cli.sources.checkpoint import Checkpoint


def fingerprint_of_facts(facts: Mapping[str, Any]) -> str:
    """Return the hash of the JSON-serializable `facts` as 16 hexadecimal digits.

    `facts` must include all inputs that affect the engine, such as the checkpoint, the options, the
    tool versions and the GPU type. `facts` must not include the model name or the engine folder,
    because several models can share an engine.
    """
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def facts_of_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the facts that identify a checkpoint.

    The facts include the size and the modification time, so the fingerprint changes when a local
    file changes.
    """
    return {
        "source": checkpoint.source,
        "size_bytes": checkpoint.size_bytes,
        "modified_ns": checkpoint.modified_ns,
    }
