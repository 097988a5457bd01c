"""Test the tokenizers with fake packages, because loading real tokenizers takes seconds."""

from __future__ import annotations

import importlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.runtime.text import tokenizer as tokenizer_module
from trtllm_serve_cli.runtime.text.tokenizer import (
    BadTokenizer,
    OpenVinoTokenizer,
    TransformersTokenizer,
    load_tokenizer,
)


class _OpenVinoTokens:
    """A fake `openvino_genai.Tokenizer` of a model without a padding token."""

    hides_padding = True

    def __init__(self, directory: Path, **properties: int) -> None:
        self.directory = directory

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1, "</s>": 2}

    def get_eos_token_id(self) -> int:
        return 2

    def get_pad_token_id(self) -> int:
        return -1

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        assert not add_special_tokens, "GenAI truncates texts"
        return SimpleNamespace(input_ids=SimpleNamespace(data=np.array([[97]])))

    def decode(self, ids: Any, *, skip_special_tokens: bool) -> Any:
        assert ids, "OpenVINO rejects an empty list"
        if isinstance(ids[0], int):
            return f"{ids} {skip_special_tokens}"
        longest = max(map(len, ids))
        hides_padding = skip_special_tokens and self.hides_padding
        padded = [each if hides_padding else each + [2] * (longest - len(each)) for each in ids]
        return [f"{each} {skip_special_tokens}" if each else "" for each in padded]


class _Encoder:
    """A fake encoder: each character is a token, after a start token and before two end tokens."""

    def __init__(self, directory: Path) -> None:
        pass

    def encode(self, text: str) -> list[int]:
        return [1, *map(ord, text), 2, 3]


@pytest.fixture
def openvino_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake: Any = ModuleType("openvino_genai")
    fake.Tokenizer = _OpenVinoTokens
    monkeypatch.setitem(sys.modules, "openvino_genai", fake)
    monkeypatch.setattr(tokenizer_module, "OpenVinoEncoder", _Encoder)
    (tmp_path / "openvino_tokenizer.xml").touch()
    return tmp_path


def test_load_tokenizer_prefers_an_openvino_tokenizer(openvino_dir: Path) -> None:
    assert isinstance(load_tokenizer(openvino_dir), OpenVinoTokenizer)


@pytest.mark.usefixtures("transformers")
def test_load_tokenizer_falls_back_to_transformers(tmp_path: Path) -> None:
    assert isinstance(load_tokenizer(tmp_path), TransformersTokenizer)


# What the libraries raise for damaged files.
_OPENVINO_ERROR = """Exception from src/inference/src/cpp/core.cpp:84:
Exception from src/inference/src/model_reader.cpp:148:
Unable to read the model: "openvino_tokenizer.xml"
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError(_OPENVINO_ERROR), 'Unable to read the model: "openvino_tokenizer.xml"'),
        (ValueError("Expecting value: line 1 column 1 (char 0)"), "Expecting value: line 1 column"),
        (Exception("Missing vocab/merges at line 1"), "Missing vocab/merges at line 1"),
        (KeyError("added_tokens"), "KeyError: 'added_tokens'"),
        (TypeError(), "TypeError"),
    ],
)
def test_load_tokenizer_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(_: Path) -> None:
        raise error

    monkeypatch.setattr(tokenizer_module, "TransformersTokenizer", fail)
    with pytest.raises(BadTokenizer) as raised:
        load_tokenizer(tmp_path)
    assert f"{tmp_path} cannot be loaded as a tokenizer: {reason}" in str(raised.value)


def test_load_tokenizer_does_not_hide_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError):
        load_tokenizer(tmp_path)


def test_openvino_encodes_and_decodes(openvino_dir: Path) -> None:
    tokenizer = load_tokenizer(openvino_dir)
    assert (
        tokenizer.encode("bc"),
        tokenizer.encode("bc", add_special_tokens=False),
        tokenizer.encode("", add_special_tokens=False),
        tokenizer.decode([5, 6]),
        tokenizer.decode([5], skip_special_tokens=False),
        tokenizer.decode([]),
    ) == ([1, 98, 99, 2, 3], [98, 99], [], "[5, 6] True", "[5] False", "")


@pytest.mark.parametrize("hides_padding", [True, False])
@pytest.mark.parametrize("skip", [True, False])
def test_openvino_decodes_sequences_together(
    openvino_dir: Path, monkeypatch: pytest.MonkeyPatch, hides_padding: bool, skip: bool
) -> None:
    monkeypatch.setattr(_OpenVinoTokens, "hides_padding", hides_padding)
    texts = load_tokenizer(openvino_dir).decode_all([[5, 6], [7], []], skip_special_tokens=skip)
    assert texts == [f"[5, 6] {skip}", f"[7] {skip}", ""]


@pytest.mark.usefixtures("transformers")
def test_transformers_decodes_several(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path).decode_all([[1, 97], [98]]) == ["a", "b"]


def test_openvino_counts_the_vocabulary_once(
    openvino_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building the vocabulary takes 20 ms, which every request would wait for."""
    tokenizer = OpenVinoTokenizer(openvino_dir)
    assert tokenizer.vocab_size == 3
    monkeypatch.delattr(_OpenVinoTokens, "get_vocab")
    assert tokenizer.vocab_size == 3


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("transformers.tokenization_utils_tokenizers", ["[1, 97] True", "[98] True"]),
        # A class that overrides `decode` may return a different text.
        ("transformers.models.whisper.tokenization_whisper", ["a", "b"]),
    ],
)
def test_transformers_decodes_sequences_together(
    module: str,
    expected: list[str],
    tmp_path: Path,
    transformers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decode(self: Any, token_ids: list[int], **options: Any) -> str:
        return chr(token_ids[-1])

    def decode_batch(ids: Any, *, skip_special_tokens: bool) -> list[str]:
        return [f"{each} {skip_special_tokens}" for each in ids]

    decode.__module__ = module
    fields = {
        "eos_token_id": 2,
        "pad_token_id": 2,
        "decode": decode,
        "_decode": decode,
        "backend_tokenizer": SimpleNamespace(decode_batch=decode_batch),
    }
    loaded = type("Tokenizer", (), fields)()
    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: loaded, raising=True
    )
    assert load_tokenizer(tmp_path).decode_all([[1, 97], [98]]) == expected


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("transformers.tokenization_utils_tokenizers", ["prepared", "a True"]),
        # A class that overrides `encode` may return other tokens, and is not thread-safe.
        ("transformers.models.code_llama.tokenization_code_llama", ["a"]),
    ],
)
def test_transformers_encodes_with_the_backend(
    module: str,
    expected: list[str],
    tmp_path: Path,
    transformers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The backend needs no lock, so texts do not wait for other texts."""
    calls: list[str] = []

    def encode(self: Any, text: str, **options: Any) -> list[int]:
        calls.append(text or "prepared")
        return [1, 97]

    def encode_batch(texts: list[str], *, add_special_tokens: bool) -> list[Any]:
        calls.append(f"{texts[0]} {add_special_tokens}")
        return [SimpleNamespace(ids=[1, 97])]

    encode.__module__ = module
    fields = {
        "eos_token_id": 2,
        "pad_token_id": 2,
        "encode": encode,
        "_encode_plus": encode,
        "backend_tokenizer": SimpleNamespace(encode_batch=encode_batch),
    }
    loaded = type("Tokenizer", (), fields)()
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: loaded)
    assert (load_tokenizer(tmp_path).encode("a"), calls) == ([1, 97], expected)


def test_long_text_does_not_block_other_threads(
    tmp_path: Path, transformers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    letters = {chr(each): each for each in range(97, 123)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))

    def encode(self: Any, text: str, **options: Any) -> list[int]:
        return list(backend.encode(text).ids)

    encode.__module__ = "transformers.tokenization_utils_tokenizers"
    fields = {"eos_token_id": 2, "pad_token_id": 2, "encode": encode, "_encode_plus": encode}
    loaded = type("Tokenizer", (), {**fields, "backend_tokenizer": backend})()
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: loaded)
    tokenizer = load_tokenizer(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        # Encoding takes about a second.
        long = threads.submit(tokenizer.encode, "abc" * 500_000)
        num_steps = 0
        while not long.done():
            time.sleep(0.001)
            num_steps += 1
    assert len(long.result()) == 1_500_000
    assert num_steps > 20


@pytest.mark.usefixtures("transformers")
def test_transformers_encodes_and_decodes(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tmp_path)
    assert (
        tokenizer.encode("a"),
        tokenizer.encode("a", add_special_tokens=False),
        tokenizer.decode([1, 97]),
        tokenizer.decode([1, 97], skip_special_tokens=False),
    ) == ([1, 97], [97], "a", "\x01a")


@pytest.mark.usefixtures("transformers")
def test_transformers_keeps_spaces_before_punctuation(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path).decode([ord(each) for each in "a ."]) == "a ."


def test_transformers_is_loaded_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing PyTorch would cost seconds and hundreds of megabytes in each text process."""
    for name in ("torch", "transformers"):
        # monkeypatch also removes modules that the test imports.
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        del sys.modules[name]
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torch.py").touch()
    (tmp_path / "transformers.py").write_text(
        """
try:
    import torch
except ImportError:
    torch = None

class AutoTokenizer:
    eos_token_id = pad_token_id = 0

    @classmethod
    def from_pretrained(cls, directory, padding_side):
        assert not torch
        return cls()
"""
    )
    assert isinstance(load_tokenizer(tmp_path), TransformersTokenizer)
    # PyTorch can still be imported later.
    assert importlib.import_module("torch").__file__ == str(tmp_path / "torch.py")


def test_the_padding_token_defaults_to_the_end_token(openvino_dir: Path) -> None:
    tokenizer = load_tokenizer(openvino_dir)
    assert (tokenizer.end_id, tokenizer.pad_id) == (2, 2)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (["VocabDecoder", "FuzeRagged", "UTF8Validate"], frozenset({1, 3})),
        # SentencePiece detokenizers replace characters of the joined text.
        (["VocabDecoder", "FuzeRagged", "RegexNormalization", "UTF8Validate"], None),
        (None, None),
    ],
)
def test_openvino_lists_tokens_that_end_inside_a_character(
    openvino_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: list[str] | None,
    expected: frozenset[int] | None,
) -> None:
    vocabulary = {b"a": 0, b"b\xe2\x82": 1, b"\xc3\xa9": 2, b"\xf0": 3, b"\xa9": 4, b"": 5}
    monkeypatch.setattr(_OpenVinoTokens, "get_vocab", lambda self: vocabulary)
    if layers is not None:
        text = "".join(f'<layer type="{each}" />' for each in layers)
        (openvino_dir / "openvino_detokenizer.xml").write_text(f"<net>{text}</net>")
    assert load_tokenizer(openvino_dir).unfinished_ids == expected


@pytest.mark.parametrize(("decoder", "expected"), [("ByteLevel", frozenset()), ("Metaspace", None)])
def test_transformers_has_texts_of_tokens_if_it_is_byte_level(
    decoder: str,
    expected: frozenset[int] | None,
    tmp_path: Path,
    transformers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = lambda self: None  # noqa: E731
    method.__module__ = "transformers.tokenization_utils_tokenizers"
    backend = SimpleNamespace(decoder=type(decoder, (), {})())
    fields = {"eos_token_id": 2, "pad_token_id": 2, "decode": method, "_decode": method}
    loaded = type("Tokenizer", (), {**fields, "backend_tokenizer": backend})()
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: loaded)
    assert load_tokenizer(tmp_path).unfinished_ids == expected
