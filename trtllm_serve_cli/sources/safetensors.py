"""Finds out from its header whether a safetensors file is whole; the tensors are not read.

Layout: the header's length (8 bytes, little-endian), the header (JSON: name -> dtype, shape and
`data_offsets`), the tensors without gaps. The offsets tell how long the file must be.
"""

from __future__ import annotations

import json
import shlex
import struct
from pathlib import Path
from typing import Any

from trtllm_serve_cli.errors import SourceError

# The format's own limit, kept by its reference reader.
_MAX_HEADER_BYTES = 100_000_000


def check_safetensors(path: Path) -> None:
    """Raises `SourceError` when the file is cut short, padded, or no safetensors file at all."""
    try:
        flaw = _find_flaw(path)
    except OSError as error:
        flaw = error.strerror or str(error)
    if flaw:
        raise SourceError(
            f"{path} is not a whole safetensors file.",
            why=flaw,
            next_step=f"remove it (rm {shlex.quote(str(path))}) and fetch it again",
        )


def _find_flaw(path: Path) -> str | None:
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < length <= min(_MAX_HEADER_BYTES, size - 8):
            return f"its header does not fit into its {size} bytes"
        header = file.read(length)
    try:
        end = _read_end(json.loads(header))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return "its header is not the JSON of a table of tensors"
    if 8 + length + end != size:
        return f"it has {size} bytes, and its header tells of {8 + length + end}"
    return None


def _read_end(header: Any) -> int:
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    return max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
