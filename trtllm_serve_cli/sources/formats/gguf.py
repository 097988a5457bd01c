"""Read a GGUF header and check that the file is complete.

ggml's docs/gguf.md specifies versions 2 and 3 of the format. A file contains the header, the
metadata, the tensor table and the tensors. Each tensor starts at an aligned offset.

The `gguf` package is not used, because it takes over two seconds for the catalog's 135M model
`demo`: it stores each vocabulary token in a separate array. This module takes 0.01 s.

Files may come from untrusted sources, so this module checks each length against the file's size.
"""

from __future__ import annotations

import mmap
import shlex
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.errors import SourceError

# Maps metadata value types to `struct` format characters.
_SCALARS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_MAX_ENTRIES = 1 << 20
_MAX_ITEMS = 1 << 24
_MAX_DIMENSIONS = 8
# Limit on the total number of strings in arrays, because reading strings one by one is slow.
# Tokenizers have fewer than a million strings.
_MAX_STRINGS = 1 << 22

# Maps each ggml type to the number of elements and bytes per block.
# fmt: off
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 40), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4),
    27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array in a GGUF file's metadata. This module reads only the array's length."""

    length: int


GgufValue = str | int | float | bool | GgufArray


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """The header of a GGUF file.

    `architecture` and `context_length` are `None` if their metadata keys are missing. `num_parts`
    is the number of files that the model is split into, or 1 if it is not split.
    """

    version: int
    metadata: Mapping[str, GgufValue]
    tensor_names: frozenset[str]
    size_bytes: int

    @property
    def num_tensors(self) -> int:
        return len(self.tensor_names)

    @property
    def architecture(self) -> str | None:
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else None

    @property
    def context_length(self) -> int | None:
        return self._count(f"{self.architecture}.context_length")

    @property
    def num_parts(self) -> int:
        return self._count("split.count") or 1

    def _count(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_gguf(path: Path) -> GgufFacts:
    """Read the header of a GGUF file.

    Raise `SourceError` if the file cannot be read, is not valid or is incomplete.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise _Invalid("the file does not start with the bytes GGUF")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Cursor(data))
    except _Invalid as error:
        raise SourceError(
            f"{path} is not a complete GGUF file.",
            why=str(error),
            next_step="download the file again, then compare its size with the published size",
        ) from error
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read.",
            why=error.strerror or str(error),
            next_step=f"check the permissions with `ls -l {shlex.quote(str(path))}`",
        ) from error


class _Invalid(Exception):
    """Raised if the GGUF file is not valid. The message contains the reason."""


class _Cursor:
    """A sequential reader of a GGUF file. It raises `_Invalid` if the file ends too early."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 4
        self.size = len(data)
        self._num_strings = 0

    def skip(self, num_bytes: int) -> int:
        start = self.at
        if num_bytes > self.size - start:
            raise _Invalid(f"the file ends after {self.size} bytes, before the end of the header")
        self.at = start + num_bytes
        return start

    def number(self, code: str) -> int:
        return int(self.scalar(code))

    def scalar(self, code: str) -> int | float | bool:
        layout = struct.Struct("<" + code)
        value: int | float | bool = layout.unpack_from(self.data, self.skip(layout.size))[0]
        return value

    def string(self) -> str:
        length = self.number("Q")
        start = self.skip(length)
        try:
            return self.data[start : self.at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise _Invalid(f"the text at byte {start} is not UTF-8") from error

    def skip_strings(self, number: int) -> None:
        """Skip an array of strings. Raise `_Invalid` if the header contains too many strings."""
        self._num_strings += number
        if self._num_strings > _MAX_STRINGS:
            raise _Invalid(f"the header declares more than {_MAX_STRINGS} strings")
        # Call no other method for each string, because a vocabulary has hundreds of thousands.
        read_length, data, at, last = _LENGTH.unpack_from, self.data, self.at, self.size - 8
        for _ in range(number):
            if at > last:
                self.skip(self.size)  # raises `_Invalid`
            at += 8 + read_length(data, at)[0]
        self.skip(at - self.at)

    def count(self, limit: int, what: str) -> int:
        number = self.number("Q")
        if number > limit:
            raise _Invalid(f"the header declares {number} {what}, but the limit is {limit}")
        return number


def _parse(cursor: _Cursor) -> GgufFacts:
    version = cursor.number("I")
    if version not in (2, 3):
        raise _Invalid(
            f"the file has version {version}, but only little-endian files of versions 2 and 3 "
            "are supported"
        )
    num_tensors = cursor.count(_MAX_ENTRIES, "tensors")
    num_entries = cursor.count(_MAX_ENTRIES, "metadata entries")
    metadata: dict[str, GgufValue] = {}
    for _ in range(num_entries):
        key = cursor.string()
        metadata[key] = _read_value(cursor, cursor.number("I"))
    names = _check_tensors(cursor, num_tensors, metadata.get("general.alignment", 32))
    return GgufFacts(version, metadata, names, cursor.size)


def _read_value(cursor: _Cursor, kind: int) -> GgufValue:
    if code := _SCALARS.get(kind):
        return cursor.scalar(code)
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _skip_array(cursor)
    raise _Invalid(f"the header contains a value of unknown type {kind}")


def _skip_array(cursor: _Cursor) -> GgufArray:
    kind = cursor.number("I")
    length = cursor.count(_MAX_ITEMS, "items in one array")
    if code := _SCALARS.get(kind):
        cursor.skip(length * struct.calcsize("<" + code))
    elif kind == _STRING:
        cursor.skip_strings(length)
    else:
        raise _Invalid(f"the header contains an array of unknown type {kind}")
    return GgufArray(length)


def _read_num_dimensions(cursor: _Cursor) -> int:
    if (number := cursor.number("I")) > _MAX_DIMENSIONS:
        raise _Invalid(
            f"the header describes a tensor with {number} dimensions, but the limit is "
            f"{_MAX_DIMENSIONS}"
        )
    return number


def _check_tensors(cursor: _Cursor, num_tensors: int, alignment: GgufValue) -> frozenset[str]:
    """Return the tensor names.

    Raise `_Invalid` if the alignment is not valid, if a tensor has too many dimensions, or if a
    tensor extends past the end of the file.
    """
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise _Invalid(f"the alignment {alignment} is not valid")
    end = 0
    names = set()
    for _ in range(num_tensors):
        names.add(cursor.string())
        elements = 1
        for _ in range(_read_num_dimensions(cursor)):
            elements *= cursor.number("Q")
        per_block, block_bytes = _BLOCKS.get(cursor.number("I"), (1, 0))
        end = max(end, cursor.number("Q") + -(-elements // per_block) * block_bytes)
    data_start = -(-cursor.at // alignment) * alignment
    if num_tensors and data_start + end > cursor.size:
        raise _Invalid(f"the file contains only {cursor.size} of {data_start + end} bytes")
    return frozenset(names)
