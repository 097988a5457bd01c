"""Read a checkpoint's JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtllm_serve_cli.errors import SourceError

# The keys of the context length in config.json. The key depends on the architecture.
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raise `SourceError` if the file cannot be read or does not contain a JSON object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise broken_json(path, "the file does not contain a JSON object")
    return value


def read_json(path: Path) -> Any:
    """Return the JSON value in a file.

    Raise `SourceError` if the file cannot be read or is not valid JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise broken_json(path, str(error)) from error


def broken_json(path: Path, why: str) -> SourceError:
    """Return the error for a JSON file that cannot be read or has invalid content."""
    return SourceError(
        f"{path} cannot be used.",
        why=why,
        next_step=f"correct {path.name}, or download the checkpoint again",
    )
