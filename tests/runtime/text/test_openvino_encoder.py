"""Test texts of any length, with tokenizers whose tokens are the bytes of a text."""

from __future__ import annotations

import functools
import random
import string
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import psutil
import pytest
from openvino import opset13
from openvino.utils.node_factory import NodeFactory

from trtllm_serve_cli.runtime.text.openvino_encoder import OpenVinoEncoder, find_extension

MAX_TOKENS = 8


@functools.cache
def open_factory() -> NodeFactory:
    """Return the factory of OpenVINO's operations, which must outlive the models."""
    factory = NodeFactory("opset13")
    factory.add_extension(find_extension())
    return factory


def limit_like_gguf(begins: Any, ends: Any, bytes_: Any) -> Any:
    """Limit the tokens like GenAI's conversion of a GGUF file."""
    limit = opset13.constant(np.int32(MAX_TOKENS))
    length = opset13.minimum(opset13.subtract(ends, begins), limit)
    return opset13.subtract(ends, length), ends, bytes_


def limit_like_converter(begins: Any, ends: Any, bytes_: Any) -> Any:
    """Limit the tokens like OpenVINO Tokenizers, with truncation enabled."""
    limits = (opset13.constant(np.int32(each)) for each in (MAX_TOKENS, 2**31 - 65))
    limit = opset13.select(opset13.constant(True), *limits)
    words = (np.frombuffer(each, np.uint8) for each in (b"right", b"longest_first"))
    sides = (opset13.constant(each).output(0) for each in words)
    parts = [begins, ends, bytes_, limit.output(0), *sides]
    return open_factory().create("Truncate", parts).outputs()


def encode_like_bpe(begins: Any, ends: Any, bytes_: Any) -> Any:
    """Encode each text as one word of a BPE tokenizer, whose tokens are the ASCII characters."""
    letters = [np.arange(128, dtype=np.int32), np.arange(1, 129, dtype=np.int32)]
    vocabulary = [*letters, np.arange(128, dtype=np.uint8)]
    no_merges = [np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8)]
    constants = [opset13.constant(each).output(0) for each in (*vocabulary, *no_merges * 2)]
    text = opset13.convert(bytes_, np.uint8).output(0)
    words = [begins, opset13.add(begins, np.int32(1)).output(0), begins, ends, text]
    attributes = {"unk_token": "", "fuse_unk": False, "suffix_indicator": "", "end_suffix": "",
                  "byte_fallback": False, "cache_capacity": 20_000}  # fmt: skip
    return open_factory().create("BPETokenizer", [*words, *constants], attributes).outputs()


def save_tokenizer(directory: Path, add_limit: Any, *, pads: bool = False) -> None:
    strings = opset13.parameter([-1], openvino.Type.string)
    unpack = open_factory().create("StringTensorUnpack", [strings.output(0)])
    tokens = opset13.convert(unpack.output(2), np.int32)
    limited = add_limit(unpack.output(0), unpack.output(1), tokens.output(0))
    begins, ends, tokens = (opset13.add(each, np.int32(0)).output(0) for each in limited)
    longest = opset13.reduce_max(opset13.subtract(ends, begins), np.int32(0))
    width = opset13.maximum(longest, np.int32(5 if pads else 0))
    pad_id = opset13.constant(np.int32(0))
    dense = open_factory().create(
        "RaggedToDense",
        [begins, ends, tokens, width.output(0), pad_id.output(0)],
        {"pad_right": True, "pad_max_length": pads},
    )
    ids, mask = opset13.convert(dense.output(0), "i64"), opset13.convert(dense.output(1), "i64")
    for node, name in ((ids, "input_ids"), (mask, "attention_mask")):
        node.output(0).set_names({name})
    model = openvino.Model([opset13.result(ids), opset13.result(mask)], [strings])
    openvino.save_model(model, directory / "openvino_tokenizer.xml")


@pytest.mark.parametrize("add_limit", [limit_like_gguf, limit_like_converter])
@pytest.mark.parametrize("text", ["", "a", "é\0", "a longer text" * 1000], ids=len)
def test_no_text_is_truncated(tmp_path: Path, add_limit: Any, text: str) -> None:
    save_tokenizer(tmp_path, add_limit)
    assert OpenVinoEncoder(tmp_path).encode(text) == list(text.encode())


def test_padding_is_removed(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, limit_like_gguf, pads=True)
    assert OpenVinoEncoder(tmp_path).encode("ab") == [97, 98]


def test_long_words_are_not_kept_in_memory(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, encode_like_bpe)
    encoder, process = OpenVinoEncoder(tmp_path), psutil.Process()
    words = ["".join(random.Random(n).choices(string.ascii_lowercase, k=10**5)) for n in range(100)]
    assert encoder.encode(words[0]) == list(words[0].encode())
    memory = process.memory_info().rss
    for word in words:
        encoder.encode(word)
    assert process.memory_info().rss < memory + 25e6
