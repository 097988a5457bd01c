"""Load a model's tokenizer with OpenVINO GenAI, Transformers or from `tokenizer.json` alone."""

from __future__ import annotations

import codecs
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree

from ..openvino_package import import_openvino
from .openvino_encoder import OpenVinoEncoder
from .tokenizer_json import load_json_tokenizer

# The layers of OpenVINO detokenizers for byte-level vocabularies. Other detokenizers also have
# layers that change the text, such as `RegexNormalization` or `ByteFallback`.
_JOINING_LAYERS = {
    "Const", "Convert", "FuzeRagged", "Parameter", "Result", "Slice", "StringTensorPack",
    "UTF8Validate", "VocabDecoder",
}  # fmt: skip


class BadTokenizer(ValueError):
    """Raised if the files of a tokenizer cannot be loaded, for example because one is damaged."""


class Tokenizer(Protocol):
    """The tokenizer interface, which converts text to token ids and back."""

    end_id: int
    pad_id: int

    @property
    def vocab_size(self) -> int:
        """The number of tokens, including the special tokens."""

    @property
    def unfinished_ids(self) -> frozenset[int] | None:
        """IDs of tokens that may end with an incomplete character without decoding to U+FFFD.

        Callers already treat a token as incomplete if its text ends with U+FFFD, so the set may be
        empty. The value is None if the vocabulary is not byte-level, because the text of a token
        may then depend on other tokens.
        """

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def decode_all(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Return the text of each sequence, decoded in one call if possible."""


class OpenVinoTokenizer:
    """A tokenizer loaded from `openvino_tokenizer.xml` and `openvino_detokenizer.xml`.

    `OpenVinoEncoder` encodes text, and OpenVINO GenAI decodes tokens.
    """

    def __init__(self, directory: Path) -> None:
        import_openvino()
        import openvino_genai

        # Use one thread, because texts are too short to parallelize and idle threads would spin.
        self._tokenizer: Any = openvino_genai.Tokenizer(directory, INFERENCE_NUM_THREADS=1)
        self._encoder = OpenVinoEncoder(directory)
        self._detokenizer_file = directory / "openvino_detokenizer.xml"
        self.end_id = int(self._tokenizer.get_eos_token_id())
        pad_id = int(self._tokenizer.get_pad_token_id())
        self.pad_id = pad_id if pad_id >= 0 else self.end_id
        # Shorter sequences in a batch are padded. If the tokenizer decodes the padding to text,
        # each sequence must be decoded separately.
        self._hides_padding = self._decode_together([[0, 0], [0]])[1] == self.decode([0])
        self._num_special_before, self._num_special_after = self._count_special_tokens()

    # Cached, because `get_vocab` builds a dictionary, which takes 20 ms for 50,000 tokens.
    @functools.cached_property
    def vocab_size(self) -> int:
        return len(self._tokenizer.get_vocab())

    @functools.cached_property
    def unfinished_ids(self) -> frozenset[int] | None:
        if not _joins_bytes(self._detokenizer_file):
            return None
        tokens = self._tokenizer.get_vocab().items()
        # OpenVINO's decoder may omit an incomplete character instead of returning U+FFFD.
        return frozenset(token_id for token, token_id in tokens if _is_unfinished(token))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = self._encoder.encode(text)
        if add_special_tokens:
            return ids
        return ids[self._num_special_before : len(ids) - self._num_special_after]

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

    def _count_special_tokens(self) -> tuple[int, int]:
        """Return how many special tokens are added before and after each text.

        Raise `ValueError` if the token ids from `OpenVinoEncoder` do not contain the token ids that
        OpenVINO GenAI returns without special tokens.
        """
        text = "a"
        ids = self._encoder.encode(text)
        tokens = self._tokenizer.encode(text, add_special_tokens=False).input_ids.data
        plain = tokens.reshape(-1).tolist()
        num_special = len(ids) - len(plain)
        for before in range(num_special + 1):
            if ids[before : before + len(plain)] == plain:
                return before, num_special - before
        raise ValueError(
            f"openvino_tokenizer.xml encodes {text!r} as {ids}, but OpenVINO GenAI encodes it as "
            f"{plain} without special tokens; rebuild the engine with `tllm import --force`"
        )

    def _decode_together(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        ids = [list(each) for each in sequences]
        return list(self._tokenizer.decode(ids, skip_special_tokens=True))


class TransformersTokenizer:
    """A tokenizer that Transformers' `AutoTokenizer` loads from a Hugging Face directory."""

    def __init__(self, directory: Path) -> None:
        # Decode in the calling thread, because a step generates too little text to benefit from a
        # thread pool.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        with _no_torch():
            from transformers import AutoTokenizer

            self._tokenizer: Any = AutoTokenizer.from_pretrained(directory, padding_side="left")
        self._encoding = threading.Lock()
        self._encoding_backend = _find_backend(self._tokenizer, "encode", "_encode_plus")
        if self._encoding_backend is not None:
            # Configure the backend's padding, truncation and special tokens.
            self._tokenizer.encode("", add_special_tokens=True)
        self._backend = _find_backend(self._tokenizer, "decode", "_decode")
        # Tokenizers of embedding models may lack an end token.
        end_id = self._tokenizer.eos_token_id
        self.end_id = -1 if end_id is None else int(end_id)
        pad_id = self._tokenizer.pad_token_id
        self.pad_id = self.end_id if pad_id is None else int(pad_id)

    @functools.cached_property
    def vocab_size(self) -> int:
        return len(self._tokenizer)

    @functools.cached_property
    def unfinished_ids(self) -> frozenset[int] | None:
        decoder = getattr(self._backend, "decoder", None)
        return frozenset() if type(decoder).__name__ == "ByteLevel" else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if self._encoding_backend is not None:
            # The library's `encode` holds the GIL, but `encode_batch` releases it.
            (encoding,) = self._encoding_backend.encode_batch(
                [text], add_special_tokens=add_special_tokens
            )
            return list(encoding.ids)
        # Hold a lock, because `encode` sets the tokenizer's padding and truncation and is not
        # thread-safe.
        with self._encoding:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if self._backend is not None:
            text = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
            return str(text)
        # Do not clean up spaces, because the cleanup would remove spaces that a stream has already
        # emitted, and would alter generated source code.
        text = self._tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return str(text)

    def decode_all(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        if self._backend is not None:
            ids = [list(each) for each in sequences]
            return list(self._backend.decode_batch(ids, skip_special_tokens=skip_special_tokens))
        return [self.decode(each, skip_special_tokens=skip_special_tokens) for each in sequences]


def _joins_bytes(detokenizer_file: Path) -> bool:
    """Return whether an OpenVINO detokenizer only joins the bytes of tokens."""
    if not detokenizer_file.exists():
        return False
    layers = ElementTree.parse(detokenizer_file).iter("layer")
    return {layer.get("type", "") for layer in layers} <= _JOINING_LAYERS


def _is_unfinished(token: bytes) -> bool:
    """Return whether the bytes of `token` end inside a UTF-8 character."""
    if token[-1:] < b"\x80":
        return False
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(token)
    return bool(decoder.getstate()[0])


def _find_backend(tokenizer: Any, *method_names: str) -> Any:
    """Return the backend of `tokenizer` from the `tokenizers` library.

    Return None if `tokenizer` does not use this library, or if its class overrides one of the
    Transformers methods `method_names`, because the results could then differ. The backend's
    `decode_batch` is six times as fast as decoding each sequence separately with Transformers, and
    its `encode_batch` needs no lock.
    """
    methods = (getattr(type(tokenizer), name, None) for name in method_names)
    is_plain = all(
        getattr(method, "__module__", "").startswith("transformers.tokenization_utils")
        for method in methods
    )
    return getattr(tokenizer, "backend_tokenizer", None) if is_plain else None


@contextlib.contextmanager
def _no_torch() -> Iterator[None]:
    """Prevent Transformers from importing PyTorch, unless PyTorch is already imported.

    If PyTorch is installed, Transformers imports it, although tokenizers do not need it. The import
    takes seconds and uses hundreds of megabytes in each text model process.
    """
    modules: dict[str, Any] = sys.modules
    if "torch" in modules:
        yield
        return
    # Suppress Transformers' warning that models require PyTorch.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # With this entry, `import torch` fails, and `find_spec` does not find PyTorch.
    modules["torch"] = None
    try:
        yield
    finally:
        del modules["torch"]


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load the tokenizer in `directory`.

    Use OpenVINO GenAI if the folder contains `openvino_tokenizer.xml`, and otherwise Transformers,
    unless `tokenizer.json` alone gives the same results. Raise `BadTokenizer` if the tokenizer
    cannot be loaded, or `ImportError` if a package that it requires is missing.
    """
    try:
        if (directory / "openvino_tokenizer.xml").exists():
            return OpenVinoTokenizer(directory)
        return load_json_tokenizer(directory) or TransformersTokenizer(directory)
    except ImportError:
        raise
    # The libraries raise many classes, for example `KeyError` for a missing key of tokenizer.json,
    # and `Exception` itself for an invalid vocabulary.
    except Exception as error:
        raise BadTokenizer(
            f"the files in {directory} cannot be loaded as a tokenizer: {_describe(error)}"
        ) from error


def _describe(error: Exception) -> str:
    """Return the cause of `error` as one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    # OpenVINO first lists the lines of its source code that threw the exception.
    causes = [line for line in lines if line and not line.startswith("Exception from ")]
    cause = causes[0] if causes else ""
    if isinstance(error, OSError | ValueError | RuntimeError) or type(error) is Exception:
        return cause or type(error).__name__
    return f"{type(error).__name__}: {cause}".removesuffix(": ")
