from __future__ import annotations

import json
import math
import shlex
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples.checkpoints import safetensors
from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.sources.formats.safetensors import check_safetensors


def pack(header: bytes | dict, num_bytes: int = 0) -> bytes:
    if isinstance(header, dict):
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + bytes(num_bytes)


def tensor(start: int, end: int, *, dtype: str = "U8", shape: list[int] | None = None) -> dict:
    shape = [end - start] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.fixture
def find_flaw(tmp_path):
    """Return a function that writes bytes to a file and returns why the file is rejected."""
    path = tmp_path / "model.safetensors"

    def find_flaw(data: bytes) -> str:
        path.write_bytes(data)
        with pytest.raises(SourceError, match="is not a complete safetensors file") as caught:
            check_safetensors(path)
        return caught.value.why

    return find_flaw


def test_returns_tensor_names(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors())
    assert check_safetensors(path) == {"w"}


@pytest.mark.parametrize("length", range(len(safetensors())))
def test_rejects_truncated_files(find_flaw, length):
    assert find_flaw(safetensors()[:length])


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"nonsense",
        b"[" * 100_000,
        b'{"w": 1}',
        b'{"w": {}}',
        b'{"w": {"dtype": "U8", "shape": [0], "data_offsets": [0]}}',
        b'{"w": {"dtype": "U8", "shape": [0], "data_offsets": [0, Infinity]}}',
        b'{"w": {"dtype": "U8", "shape": [-1], "data_offsets": [1, 0]}}',
        b'{"w": {"dtype": "U8", "shape": [true], "data_offsets": [0, 1]}}',
        b'{"w": {"dtype": [], "shape": [0], "data_offsets": [0, 0]}}',
        b'{"__metadata__": {"a": 1}}',
        b' {"__metadata__": {}}',
        b"\xff\xfe",
    ],
    ids=range(13),
)
def test_rejects_invalid_headers(find_flaw, header):
    assert find_flaw(pack(header)) == "the header is not a JSON object that describes tensors"


@pytest.mark.parametrize(
    ("header", "num_bytes", "flaw"),
    [
        ({"a": tensor(0, 4), "b": tensor(2, 6)}, 6, "the header places b in the preceding tensor"),
        ({"a": tensor(0, 4), "b": tensor(5, 6)}, 6, "the header places b after a gap"),
        ({"a": tensor(1, 4)}, 4, "the header places a after a gap"),
        ({"a": tensor(0, 4, dtype="BF16", shape=[2, 2])}, 4, "the header assigns 4 bytes to a, "
                                                             "which does not match the type BF16 "
                                                             "and the shape [2, 2]"),
        ({"a": tensor(0, 4)}, 5, "the file is 73 bytes long, but the header describes 72 bytes"),
    ],
    ids=["overlap", "gap", "start", "shape", "longer"],
)  # fmt: skip
def test_rejects_invalid_tensor_offsets(find_flaw, header, num_bytes, flaw):
    assert find_flaw(pack(header, num_bytes)) == flaw


def test_accepts_unknown_dtypes(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(pack({"a": tensor(0, 3, dtype="F3_NEW", shape=[8])}, 3))
    assert check_safetensors(path) == {"a"}


def test_recognizes_git_lfs_pointers(find_flaw):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    assert find_flaw(pointer) == (
        "the file is a Git LFS pointer; run `git lfs pull` to download the file's content"
    )


def test_file_that_cannot_be_read_is_not_called_incomplete(tmp_path):
    path = tmp_path / "model.safetensors"
    path.mkdir()
    with pytest.raises(SourceError) as caught:
        check_safetensors(path)
    assert (caught.value.what, caught.value.why, caught.value.next_step) == (
        f"{path} cannot be read.",
        "Is a directory",
        f"check the permissions with `ls -l {path}`",
    )


def test_next_step_can_be_pasted(tmp_path):
    path = tmp_path / "it's mine.safetensors"
    path.write_bytes(b"")
    with pytest.raises(SourceError) as caught:
        check_safetensors(path)
    assert (
        caught.value.next_step
        == f"remove the file with `rm {shlex.quote(str(path))}`, then download it again"
    )


SIZES = {"BOOL": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4, "I64": 8}
SHAPES = st.lists(
    st.tuples(st.sampled_from(sorted(SIZES)), st.lists(st.integers(0, 4), max_size=3)), max_size=4
)


def lay_out(shapes: list[tuple[str, list[int]]]) -> tuple[dict, int]:
    """Return a valid header for tensors of these types and shapes, and the size of the data."""
    header, end = {}, 0
    for number, (dtype, shape) in enumerate(shapes):
        start, end = end, end + SIZES[dtype] * math.prod(shape)
        header[f"t{number}"] = tensor(start, end, dtype=dtype, shape=shape)
    return header, end


@given(SHAPES)
def test_accepts_valid_headers(tmp_path_factory, shapes):
    header, num_bytes = lay_out(shapes)
    path = tmp_path_factory.mktemp("right") / "model.safetensors"
    path.write_bytes(pack(header, num_bytes))
    assert check_safetensors(path) == set(header)


@given(SHAPES, st.data())
def test_agrees_with_the_reference_reader_on_mutated_headers(tmp_path_factory, shapes, data):
    reference = pytest.importorskip("safetensors", reason="comes with `make .venv/.dev`")
    header, num_bytes = lay_out(shapes)
    whole = bytearray(pack(header, num_bytes))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(
            st.one_of(st.sampled_from(b'0123456789"[]{},: '), st.integers(0, 255))
        )
    path = tmp_path_factory.mktemp("mutated") / "model.safetensors"
    path.write_bytes(whole)
    try:
        reference.deserialize(bytes(whole))
    except reference.SafetensorError as error:
        # check_safetensors accepts an unknown dtype, because the dtype may be newer.
        if "unknown variant" not in str(error):
            with pytest.raises(SourceError):
                check_safetensors(path)
    else:
        check_safetensors(path)
