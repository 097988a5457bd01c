"""Read and write floating-point tensors in safetensors files with NumPy."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .safetensors_header import BadHeader, TensorEntry, read_header

Array = np.ndarray[Any, np.dtype[Any]]
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return the tensors in `path`, keyed by name and converted to float32.

    Raise `ValueError` if the file is invalid or a tensor has a type that is not in `_DTYPES`, or
    `OSError` if the file cannot be read.
    """
    try:
        entries = read_header(path)
        data = path.read_bytes()
        return {name: _read_tensor(data, entry) for name, entry in entries.items()}
    except BadHeader as error:
        raise ValueError(
            f"cannot read {path} as a LoRA adapter: {error}; the file must be a complete "
            "safetensors file with F64, F32, F16 or BF16 tensors"
        ) from error


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in `path`, keyed by name. Only the header is read.

    Raise `ValueError` if the file is invalid, or `OSError` if it cannot be read.
    """
    try:
        return {name: entry.shape for name, entry in read_header(path).items()}
    except BadHeader as error:
        raise ValueError(f"{path} is not a complete safetensors file: {error}") from error


def write_safetensors(tensors: Mapping[str, Array]) -> bytes:
    """Return the contents of a safetensors file with `tensors`, converted to float32."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.size * 4
        shape = list(tensor.shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    blocks = [np.ascontiguousarray(tensor, dtype="<f4").tobytes() for tensor in tensors.values()]
    return b"".join([struct.pack("<Q", len(text)), text, *blocks])


def widen_bfloat16(bits: Array) -> Array:
    """Convert bfloat16 numbers to float32.

    The bfloat16 numbers must be passed as 16-bit integers, because NumPy has no bfloat16 type.
    """
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow_to_bfloat16(values: Array) -> Array:
    """Convert finite float32 `values` to the nearest bfloat16 numbers.

    The bfloat16 numbers are returned as 16-bit integers, because NumPy has no bfloat16 type.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Round to nearest, ties to even.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _read_tensor(data: bytes, entry: TensorEntry) -> Array:
    if entry.dtype not in _DTYPES:
        raise BadHeader(f"the file contains a tensor with the dtype {entry.dtype}")
    flat = np.frombuffer(data[entry.start : entry.end], _DTYPES[entry.dtype])
    tensor = flat.reshape(entry.shape)
    return widen_bfloat16(tensor) if entry.dtype == "BF16" else tensor.astype(np.float32)
