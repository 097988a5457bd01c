from __future__ import annotations

import shlex
import struct

import pytest

from tests.sources.checkpoints import safetensors
from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.sources.safetensors import check_safetensors


def test_whole_file_passes(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors())
    check_safetensors(path)


@pytest.mark.parametrize("length", range(len(safetensors())))
def test_file_cut_anywhere_is_refused(tmp_path, length):
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors()[:length])
    with pytest.raises(SourceError, match="is not a whole safetensors file"):
        check_safetensors(path)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"nonsense",
        b"[" * 100_000,
        b'{"w": 1}',
        b'{"w": {}}',
        b'{"w": {"data_offsets": [0]}}',
        b'{"w": {"data_offsets": [0, Infinity]}}',
        b"\xff\xfe",
    ],
    ids=range(8),
)
def test_header_that_is_no_table_is_refused(tmp_path, header):
    path = tmp_path / "it's mine.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(SourceError) as caught:
        check_safetensors(path)
    assert caught.value.why == "its header is not the JSON of a table of tensors"
    assert caught.value.next_step == (f"remove it (rm {shlex.quote(str(path))}) and fetch it again")
