"""Read the header of a safetensors file and check that the file is complete.

A file contains the header's length (8 bytes, little-endian), the header, and the tensors without
gaps. The header is a JSON object that maps each tensor's name to its dtype, shape and
`data_offsets`. The file is complete if it ends with the last tensor and the offsets of each tensor
match its shape and dtype. Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The maximum header length in bytes. The reference implementation rejects longer headers.
_MAX_HEADER_BYTES = 100_000_000
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# Maps each dtype to its number of bits per value. For other dtypes, only the tensor offsets are
# checked.
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


class BadHeader(Exception):
    """Raised if a safetensors file is invalid. The message describes the error."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The header's description of one tensor.

    The tensor's data starts at byte `start` of the file and ends before byte `end`.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Return the header's entries, keyed by tensor name.

    Raise `BadHeader` if the file is invalid, or `OSError` if it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(len(_LFS_POINTER))
        if first == _LFS_POINTER:
            raise BadHeader(
                "the file is a Git LFS pointer; run `git lfs pull` to download the file's content"
            )
        length = struct.unpack("<Q", first[:8])[0] if len(first) >= 8 else 0
        if not 0 < length <= min(_MAX_HEADER_BYTES, size - 8):
            raise BadHeader(
                f"the file is {size} bytes long, but its header length is {length}; the header "
                f"length must be between 1 and {min(_MAX_HEADER_BYTES, max(size - 8, 1))} bytes"
            )
        file.seek(8)
        header = file.read(length)
    tensors = _parse_header(header)
    _check_places(tensors, 8 + length, size)
    return tensors


def _parse_header(header: bytes) -> dict[str, TensorEntry]:
    try:
        if not header.startswith(b"{"):
            raise ValueError
        table = json.loads(header.decode("utf-8"))
        metadata = table.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError
        return {name: _parse_entry(name, entry, 8 + len(header)) for name, entry in table.items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadHeader("the header is not a JSON object that describes tensors") from error


def _parse_entry(name: str, entry: Mapping[str, Any], data_start: int) -> TensorEntry:
    start, end = (_read_count(each) for each in entry["data_offsets"])
    shape = [_read_count(each) for each in entry["shape"]]
    bits = _BITS.get(entry["dtype"])
    if start > end or (bits is not None and math.prod(shape) * bits != (end - start) * 8):
        raise BadHeader(
            f"the header assigns {end - start} bytes to {name}, which does not match the type "
            f"{entry['dtype']} and the shape {shape}"
        )
    return TensorEntry(entry["dtype"], tuple(shape), data_start + start, data_start + end)


def _read_count(value: Any) -> int:
    # `isinstance(value, int)` would accept true and false, because `bool` is a subclass of `int`.
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _check_places(tensors: Mapping[str, TensorEntry], end: int, size: int) -> None:
    """Check that the tensors fill the file from the end of the header to the end of the file.

    The header ends at byte `end`, and the file has `size` bytes. Raise `BadHeader` if the tensors
    overlap, leave gaps, or do not end at the end of the file.
    """
    for name, tensor in sorted(tensors.items(), key=lambda each: (each[1].start, each[1].end)):
        if tensor.start != end:
            place = "in the preceding tensor" if tensor.start < end else "after a gap"
            raise BadHeader(f"the header places {name} {place}")
        end = tensor.end
    if end != size:
        raise BadHeader(f"the file is {size} bytes long, but the header describes {end} bytes")
