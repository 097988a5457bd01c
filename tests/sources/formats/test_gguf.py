from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples.checkpoints import gguf, llama_gguf
from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.sources.formats.gguf import GgufArray, GgufFacts, read_gguf

KEYS = st.text(min_size=1, max_size=20)
VALUES = st.one_of(
    st.tuples(st.just("string"), st.text(max_size=50)),
    st.tuples(st.just("strings"), st.lists(st.text(max_size=8), max_size=5)),
    st.tuples(st.just("u32s"), st.lists(st.integers(0, 2**32 - 1), max_size=5)),
    st.tuples(st.just("u8"), st.integers(0, 255)),
    st.tuples(st.just("i64"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("f32"), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just("bool"), st.booleans()),
)


def read(data: bytes) -> GgufFacts:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(data)
        return read_gguf(path)


@given(st.dictionaries(KEYS.filter(lambda key: key != "general.alignment"), VALUES, max_size=6))
def test_metadata_round_trips(metadata):
    expected = {
        key: GgufArray(len(value)) if kind in ("strings", "u32s") else value
        for key, (kind, value) in metadata.items()
    }
    assert read(gguf(metadata)).metadata == expected


def test_reads_facts_of_a_model():
    facts = read(llama_gguf())
    assert facts.architecture == "llama"
    assert facts.context_length == 8192
    assert facts.num_parts == 1


def test_absent_facts_are_none():
    facts = read(gguf({}))
    assert (facts.architecture, facts.context_length) == (None, None)


@pytest.mark.parametrize("length", range(len(llama_gguf())))
def test_rejects_truncated_files(length):
    with pytest.raises(SourceError, match="is not a complete GGUF file"):
        read(llama_gguf()[:length])


def test_reports_missing_tensor_data():
    whole = llama_gguf()
    with pytest.raises(SourceError, match=f"only {len(whole) - 1} of {len(whole)} bytes"):
        read(whole[:-1])


@given(st.binary(max_size=200))
def test_random_bytes_never_crash_the_reader(noise):
    try:
        read(b"GGUF" + noise)
    except SourceError as error:
        assert error.next_step == (
            "download the file again, then compare its size with the published size"
        )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PK\3\4", "the file does not start with the bytes GGUF"),
        (
            gguf({}, version=1),
            "the file has version 1, but only little-endian files of versions 2 and 3",
        ),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63),
            "the header declares 9223372036854775808 metadata",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0), "the header declares 1099511627776 tensors"),
        (
            b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**23),
            "the header declares more than 4194304 strings",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "before the end of the header"),
        (
            b"GGUF" + struct.pack("<IQQQ1sIIQQ", 3, 0, 1, 1, b"k", 9, 8, 1, 2**64 - 1),
            "before the end of the header",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ1sIIQQ", 3, 0, 1, 1, b"k", 9, 8, 2, 2**64 - 1),
            "before the end of the header",
        ),
        (b"GGUF" + struct.pack("<IQQQI", 3, 0, 1, 0, 99), "a value of unknown type 99"),
        (b"GGUF" + struct.pack("<IQQQIIQ", 3, 0, 1, 0, 9, 8, 2**60), "items in one array"),
        (b"GGUF" + struct.pack("<IQQQIIQ", 3, 0, 1, 0, 9, 9, 1), "an array of unknown type 9"),
        (b"GGUF" + struct.pack("<IQQQI", 3, 1, 0, 0, 10**6), "a tensor with 1000000 dimensions"),
        (b"GGUF" + struct.pack("<IQQQ2s", 3, 0, 1, 2, b"\xff\xff"), "is not UTF-8"),
        (gguf({"general.alignment": ("u32", 0)}), "the alignment 0 is not valid"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rejects_malicious_files(data, why):
    with pytest.raises(SourceError, match=why):
        read(data)


def test_reports_unreadable_file(tmp_path):
    with pytest.raises(SourceError, match="cannot be read") as caught:
        read_gguf(tmp_path)
    assert caught.value.why == "Is a directory"
