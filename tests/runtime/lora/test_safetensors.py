"""Safetensors files of floats."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from trtllm_serve_cli.runtime.lora.safetensors import (
    narrow_to_bfloat16,
    read_safetensors,
    read_shapes,
    widen_bfloat16,
    write_safetensors,
)


def write_raw(path: Path, dtype: str, shape: list[int], data: bytes, *, end: int = -1) -> Path:
    offsets = [0, len(data) if end < 0 else end]
    header = json.dumps({"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


@given(st.dictionaries(st.text(), npst.arrays(np.float32, npst.array_shapes(max_side=4))))
def test_read_safetensors_reads_write_safetensors(tensors: dict[str, Any]) -> None:
    import tempfile

    tensors.pop("__metadata__", None)
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(write_safetensors(tensors))
        read = read_safetensors(Path(file.name))
    assert list(read) == list(tensors)
    assert all(np.array_equal(read[name], tensors[name], equal_nan=True) for name in tensors)


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("F64", np.array([1.5, -2], "<f8")),
        ("F16", np.array([1.5, -2], "<f2")),
        ("BF16", np.array([0x3FC0, 0xC000], "<u2")),
    ],
)
def test_read_safetensors_converts_to_float32(tmp_path: Path, dtype: str, data: Any) -> None:
    path = write_raw(tmp_path / "f", dtype, [2], data.tobytes())
    assert read_safetensors(path)["t"].tolist() == [1.5, -2.0]


@pytest.mark.parametrize("cut", [4, 20, -2])
def test_rejects_a_truncated_file(tmp_path: Path, cut: int) -> None:
    path = write_raw(tmp_path / "f", "F32", [2], b"12345678")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match="must be a complete safetensors file with F64"):
        read_safetensors(path)


@pytest.mark.parametrize(
    ("dtype", "shape", "why"),
    [("I8", [8], "dtype I8"), ("F32", [3], "must be"), ("F32", ["x"], "must be")],
)
def test_rejects_tensors_that_are_not_floats(
    tmp_path: Path, dtype: str, shape: Any, why: str
) -> None:
    path = write_raw(tmp_path / "f", dtype, shape, b"12345678")
    with pytest.raises(ValueError, match=f"{why}.* F16 or BF16 tensors"):
        read_safetensors(path)


def test_read_shapes_rejects_a_git_lfs_pointer(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(ValueError, match="git lfs pull"):
        read_shapes(path)


@given(st.integers(0, 0xFFFF).filter(lambda bits: bits & 0x7F80 != 0x7F80))
def test_bfloat16_round_trip_through_float32(bits: int) -> None:
    array = np.array([bits], dtype=np.uint16)
    assert narrow_to_bfloat16(widen_bfloat16(array)).tolist() == [bits]
