"""Compare tokenizers that are loaded from `tokenizer.json` alone with those of Transformers."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.drawn_examples import draw_examples
from trtllm_serve_cli.runtime.text.tokenizer import TransformersTokenizer, load_tokenizer
from trtllm_serve_cli.runtime.text.tokenizer_json import JsonTokenizer, load_json_tokenizer

_SPECIAL = ["<s>", "</s>", "<pad>", "<tool>"]
_TEXTS = [
    "",
    "a",
    "Hello, world",
    " two  spaces ",
    "<s>x</s>",
    "a <tool> b",
    "naïve 日本\n",
    "<padding>",
]
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")

Files = dict[str, Any]
_START_TOKEN: Files = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": each, "type_id": 0}} for each in "AB"],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
}  # fmt: skip
_TRUNCATION: Files = {
    "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
}  # fmt: skip
# Entries of `tokenizer_config.json`. Transformers changes the tokenizer for most of them.
_CHANGES: Files = {
    "add_bos_token": True, "add_eos_token": True, "split_special_tokens": True,
    "extra_special_tokens": ["<tool>"], "additional_special_tokens": ["<new>"],
}  # fmt: skip


_rarely = st.integers(0, 9).map(lambda number: number == 9)


@st.composite
def folders(draw: st.DrawFn) -> Files:
    """Draw the JSON files of a tokenizer. Often, Transformers would not change it."""
    added = [
        {"id": 256 + number, "content": content, "special": not draw(_rarely)}
        | {flag: draw(_rarely) and draw(st.booleans()) for flag in _FLAGS}
        for number, content in enumerate(_SPECIAL)
    ]
    tokenizer = _tokenizer(added, add_prefix_space=draw(st.booleans()))
    if draw(st.booleans()):
        tokenizer["post_processor"] = _START_TOKEN
    if draw(_rarely):
        tokenizer["truncation"] = _TRUNCATION
    config: Files = {
        "tokenizer_class": draw(st.sampled_from(["PreTrainedTokenizerFast", "TokenizersBackend"]))
    }
    for name in ("bos_token", "eos_token", "pad_token"):
        if draw(st.booleans()):
            config[name] = "<new>" if draw(_rarely) else draw(st.sampled_from(_SPECIAL))
            if draw(_rarely):
                config[name] = {"content": config[name], "lstrip": draw(st.booleans())}
    if draw(st.booleans()):
        config["added_tokens_decoder"] = {str(each["id"]): _decoder_entry(each) for each in added}
        if draw(_rarely):
            config["added_tokens_decoder"]["257"]["lstrip"] = True
    config |= {name: value for name, value in _CHANGES.items() if draw(_rarely)}
    files: Files = {"tokenizer.json": tokenizer, "tokenizer_config.json": config}
    if draw(_rarely):
        files["special_tokens_map.json"] = {"eos_token": draw(st.sampled_from(_SPECIAL))}
    return files


def _tokenizer(added: list[Files], *, add_prefix_space: bool = False) -> Files:
    """Return a byte-level tokenizer without merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return {**json.loads(tokenizer.to_str()), "added_tokens": added}


def _decoder_entry(token: Files) -> Files:
    return {name: value for name, value in token.items() if name != "id"}


@contextmanager
def written(files: Files) -> Iterator[Path]:
    """Write the files to a folder, together with a `config.json`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, contents in {"config.json": {"model_type": "llama"}, **files}.items():
            Path(folder, name).write_text(json.dumps(contents))
        yield Path(folder)


def _is_loaded(files: Files) -> bool:
    with written(files) as folder:
        return load_json_tokenizer(folder) is not None


@given(folders())
def test_results_equal_those_of_transformers(files: Files) -> None:
    with written(files) as folder:
        loaded = load_json_tokenizer(folder)
        if loaded is None:
            return
        known = TransformersTokenizer(folder)
    assert (loaded.end_id, loaded.pad_id) == (known.end_id, known.pad_id)
    assert loaded.vocab_size == known.vocab_size
    assert loaded.unfinished_ids == known.unfinished_ids
    for each in (True, False):
        ids = [loaded.encode(text, add_special_tokens=each) for text in _TEXTS]
        assert ids == [known.encode(text, add_special_tokens=each) for text in _TEXTS]
        texts = loaded.decode_all(ids, skip_special_tokens=each)
        assert texts == known.decode_all(ids, skip_special_tokens=each)
        assert texts == [loaded.decode(each_ids, skip_special_tokens=each) for each_ids in ids]


def test_both_kinds_of_folders_are_drawn() -> None:
    loaded = [_is_loaded(each) for each in draw_examples(folders())]
    assert 0.2 < sum(loaded) / len(loaded) < 0.9


def test_tokenizer_is_loaded_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    token = {"id": 256, "content": "</s>", "special": True, **dict.fromkeys(_FLAGS, False)}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    with written(
        {"tokenizer.json": _tokenizer([token]), "tokenizer_config.json": config}
    ) as folder:
        tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, JsonTokenizer)
    assert (tokenizer.end_id, tokenizer.pad_id, tokenizer.vocab_size) == (256, 256, 257)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_invalid_files_are_left_to_transformers(name: str) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    with written({"tokenizer.json": _tokenizer([]), "tokenizer_config.json": config}) as folder:
        assert load_json_tokenizer(folder) is not None
        (folder / name).write_text("{")
        assert load_json_tokenizer(folder) is None
