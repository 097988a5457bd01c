"""The model's tokenizer: OpenVINO's if its files are present, otherwise Transformers'."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np


class Tokenizer(Protocol):
    """Converts text to token ids and back."""

    end_id: int
    pad_id: int

    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def decode_all(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Return the result of `decode` for each sequence, in one call if possible."""


class OpenVinoTokenizer:
    """The tokenizer of an OpenVINO IR (`openvino_tokenizer.xml`)."""

    def __init__(self, directory: Path) -> None:
        import openvino_genai

        # One thread: a piece of text is too small to parallelize, and idle threads would spin.
        self._tokenizer: Any = openvino_genai.Tokenizer(directory, INFERENCE_NUM_THREADS=1)
        self.end_id = int(self._tokenizer.get_eos_token_id())
        pad_id = int(self._tokenizer.get_pad_token_id())
        self.pad_id = pad_id if pad_id >= 0 else self.end_id
        # A batch pads shorter sequences. Some tokenizers decode the padding to text, so they must
        # decode each sequence separately.
        self._hides_padding = self._decode_together([[0, 0], [0]])[1] == self.decode([0])

    def vocab_size(self) -> int:
        return len(self._tokenizer.get_vocab())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        tokens = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return [int(token) for token in np.asarray(tokens.input_ids.data).reshape(-1)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if not token_ids:
            return ""
        ids = [int(token) for token in token_ids]
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def decode_all(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        if len(sequences) > 1 and skip_special_tokens and self._hides_padding:
            return self._decode_together(sequences)
        return [self.decode(each, skip_special_tokens=skip_special_tokens) for each in sequences]

    def _decode_together(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        ids = [list(each) for each in sequences]
        return list(self._tokenizer.decode(ids, skip_special_tokens=True))


class TransformersTokenizer:
    """The `AutoTokenizer` of a Hugging Face directory."""

    def __init__(self, directory: Path) -> None:
        with _no_torch():
            from transformers import AutoTokenizer

            self._tokenizer: Any = AutoTokenizer.from_pretrained(directory, padding_side="left")
        self._encoding = threading.Lock()
        self.end_id = int(self._tokenizer.eos_token_id)
        pad_id = self._tokenizer.pad_token_id
        self.pad_id = self.end_id if pad_id is None else int(pad_id)

    def vocab_size(self) -> int:
        return len(self._tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        # Each call sets the tokenizer's padding and truncation, which is not thread-safe.
        with self._encoding:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        # Cleaning up would remove spaces that a stream has already emitted, and damage source code.
        text = self._tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return str(text)

    def decode_all(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        return [self.decode(each, skip_special_tokens=skip_special_tokens) for each in sequences]


@contextlib.contextmanager
def _no_torch() -> Iterator[None]:
    """Hide PyTorch from Transformers, unless it is already loaded.

    Transformers imports PyTorch if it is installed. The import takes seconds and hundreds of
    megabytes in each text process of a model, and tokenizers do not need PyTorch.
    """
    modules: dict[str, Any] = sys.modules
    if "torch" in modules:
        yield
        return
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # "models require PyTorch"
    modules["torch"] = None  # `import torch` fails, and `find_spec` does not find PyTorch
    try:
        yield
    finally:
        del modules["torch"]


def load_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer in `directory`: OpenVINO's if it has one, otherwise Transformers'."""
    if (directory / "openvino_tokenizer.xml").exists():
        return OpenVinoTokenizer(directory)
    return TransformersTokenizer(directory)
