"""Finds out from its header whether a safetensors file is whole; the tensors are not read.

Layout: the header's length (8 bytes, little-endian), the header (JSON: name -> dtype, shape and
`data_offsets`), the tensors without gaps. So the header tells how long the file must be, and each
tensor twice how long it is. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import shlex
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_serve_cli.errors import SourceError

# The format's own limit, kept by its reference reader.
_MAX_HEADER_BYTES = 100_000_000
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# Types that are not here are newer; of those, only the places of the tensors are checked.
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


class _Flaw(Exception):
    """What is wrong with the file, in a sentence."""


def check_safetensors(path: Path) -> frozenset[str]:
    """The names of the tensors; raises `SourceError` when the file is cut short, padded or none."""
    try:
        return _read_names(path)
    except (_Flaw, OSError) as error:
        flaw = str(error) if isinstance(error, _Flaw) else error.strerror or str(error)
    raise SourceError(
        f"{path} is not a whole safetensors file.",
        why=flaw,
        next_step=f"remove it (rm {shlex.quote(str(path))}) and fetch it again",
    )


def _read_names(path: Path) -> frozenset[str]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
        if start == _LFS_POINTER:
            raise _Flaw("it is a pointer of Git LFS in place of the file; `git lfs pull` gets that")
        length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
        if not 0 < length <= min(_MAX_HEADER_BYTES, size - 8):
            raise _Flaw(f"its header does not fit into its {size} bytes")
        file.seek(8)
        header = file.read(length)
    tensors = _parse_header(header)
    end = _check_places(tensors)
    if 8 + length + end != size:
        raise _Flaw(f"it has {size} bytes, and its header tells of {8 + length + end}")
    return frozenset(tensors)


def _parse_header(header: bytes) -> dict[str, tuple[int, int]]:
    """Each tensor's first byte and the one after its last, counted from the end of the header."""
    try:
        if not header.startswith(b"{"):
            raise ValueError
        table = json.loads(header.decode("utf-8"))
        metadata = table.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError
        return {name: _read_place(name, entry) for name, entry in table.items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _Flaw("its header is not the JSON of a table of tensors") from error


def _read_place(name: str, entry: Mapping[str, Any]) -> tuple[int, int]:
    start, end = (_read_count(each) for each in entry["data_offsets"])
    shape = [_read_count(each) for each in entry["shape"]]
    bits = _BITS.get(entry["dtype"])
    if start > end or (bits is not None and math.prod(shape) * bits != (end - start) * 8):
        raise _Flaw(
            f"its header gives {name} {end - start} bytes, which is not what {entry['dtype']} of "
            f"shape {shape} takes"
        )
    return start, end


def _read_count(value: Any) -> int:
    # A bool is an int to Python, and none to the format.
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _check_places(tensors: Mapping[str, tuple[int, int]]) -> int:
    """The end of the last tensor, if each starts where the one before it ends."""
    end = 0
    for name, place in sorted(tensors.items(), key=lambda each: each[1]):
        if place[0] != end:
            between = (
                "overlaps the tensor before it" if place[0] < end else "leaves a gap before it"
            )
            raise _Flaw(f"its header puts {name} where it {between}")
        end = place[1]
    return end
