"""A checkpoint of the demo model with fewer layers.

Its engine has the tokenizer, the vocabulary and the kinds of layers of the demo model, but takes a
fifth of the CPU time to load and to generate a token. Its texts make no sense, so tests that judge
texts use the demo model itself.
"""

from __future__ import annotations

import struct
from pathlib import Path

NUM_LAYERS = 4
# With this value, the words of a text differ. Without it, the text repeats few words.
REPETITION_PENALTY = 1.8
_KEY = b"llama.block_count"
_UINT32 = 4


def write_shallow(demo: Path, path: Path) -> None:
    """Copy the demo model's GGUF file to `path`, with fewer layers declared in the header.

    The file keeps the tensors of the other layers, which conversion ignores.
    """
    content = bytearray(demo.read_bytes())
    start = content.index(_KEY) + len(_KEY)
    kind, num_layers = struct.unpack_from("<II", content, start)
    assert kind == _UINT32 and num_layers > NUM_LAYERS
    struct.pack_into("<I", content, start + 4, NUM_LAYERS)
    path.write_bytes(content)


def find_last_word(text: str) -> str:
    """Return the last word of a generated text that consists of at least three letters."""
    return next(each for each in reversed(text.split()) if each.isalpha() and len(each) > 2)
