"""Small checkpoints: safetensors and GGUF files of a few hundred bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

_CODES = {"u8": (0, "B"), "u32": (4, "I"), "f32": (6, "f"), "bool": (7, "?"), "i64": (11, "q")}


def safetensors(num_floats: int = 4) -> bytes:
    tensor = {"dtype": "F32", "shape": [num_floats], "data_offsets": [0, 4 * num_floats]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + b"\1" * 4 * num_floats


def hf_files(**config: object) -> dict[str, bytes]:
    config = {"architectures": ["LlamaForCausalLM"], **config}
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": safetensors(),
    }


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def gguf(
    metadata: dict[str, tuple[str, object]], *, num_floats: int = 8, version: int = 3
) -> bytes:
    """Return a GGUF file with one tensor of 32-bit floats (no tensor if `num_floats` is 0)."""
    data = b"GGUF" + struct.pack("<IQQ", version, bool(num_floats), len(metadata))
    for key, (kind, value) in metadata.items():
        data += _text(key) + _value(kind, value)
    if num_floats:
        data += _text("w") + struct.pack("<IQIQ", 1, num_floats, 0, 0)
        data += b"\0" * (-len(data) % 32) + b"\1" * 4 * num_floats
    return data


def llama_gguf() -> bytes:
    return gguf(
        {
            "general.architecture": ("string", "llama"),
            "llama.context_length": ("u32", 8192),
            "tokenizer.ggml.tokens": ("strings", ["a", "b", "c"]),
            "tokenizer.ggml.bos_token_id": ("u32", 1),
            "tokenizer.ggml.eos_token_id": ("u32", 2),
            "tokenizer.chat_template": ("string", "{{ messages }}"),
        }
    )


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: str, value) -> bytes:
    if kind == "string":
        return struct.pack("<I", 8) + _text(value)
    if kind == "strings":
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    if kind == "u32s":
        return struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)
    number, code = _CODES[kind]
    return struct.pack("<I" + code, number, value)
