"""Load a tokenizer from `tokenizer.json` alone, without Transformers.

Loading a tokenizer with Transformers takes 1.1 s of CPU time and 33 MiB in each process
(benchmarks/tokenizer_loading.py), most of it for the import. For its generic tokenizer class,
Transformers uses the tokenizer in `tokenizer.json` without changes, unless other files of the
folder change it (transformers/tokenization_utils_tokenizers.py, version 5.5).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Names of the generic class in `tokenizer_config.json`. Other classes may change the tokenizer.
_GENERIC_CLASSES = {"PreTrainedTokenizerFast", "TokenizersBackend"}
_TOKENS = {
    "bos_token", "cls_token", "eos_token", "mask_token", "pad_token", "sep_token", "unk_token",
}  # fmt: skip
_TOKEN_LISTS = {"additional_special_tokens", "extra_special_tokens"}
# Other entries of `tokenizer_config.json` that do not change the tokenizer, if the tokens of
# `added_tokens_decoder` are those of `tokenizer.json`.
_HARMLESS_ENTRIES = {
    "added_tokens_decoder", "backend", "chat_template", "clean_up_tokenization_spaces", "is_local",
    "model_input_names", "model_max_length", "padding_side", "tokenizer_class",
}  # fmt: skip
# Flags of tokens with special rules. Transformers may override the flags of special tokens.
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


class JsonTokenizer:
    """A tokenizer of the library `tokenizers`, which loads `tokenizer.json`."""

    def __init__(self, tokenizer: Any, end_id: int, pad_id: int) -> None:
        """Wrap a `tokenizers.Tokenizer`. `end_id` is -1 if the model has no end token."""
        self._tokenizer = tokenizer
        self.end_id = end_id
        self.pad_id = pad_id

    @functools.cached_property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @functools.cached_property
    def unfinished_ids(self) -> frozenset[int] | None:
        is_byte_level = type(self._tokenizer.decoder).__name__ == "ByteLevel"
        return frozenset() if is_byte_level else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        # `encode` holds the GIL, but `encode_batch` releases it.
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        ids = list(token_ids)
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def decode_all(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        ids = [list(each) for each in sequences]
        return list(self._tokenizer.decode_batch(ids, skip_special_tokens=skip_special_tokens))


def load_json_tokenizer(folder: Path) -> JsonTokenizer | None:
    """Return the tokenizer in `folder`.

    Return None if Transformers might change the tokenizer, or if a file is missing or invalid.
    """
    config = _read_object(folder / "tokenizer_config.json")
    if config.get("tokenizer_class") not in _GENERIC_CLASSES:
        return None
    if not config.keys() <= _TOKENS | _TOKEN_LISTS | _HARMLESS_ENTRIES:
        return None
    # Earlier versions of Transformers wrote these two files. The second repeats the special tokens.
    has_added = (folder / "added_tokens.json").exists()
    tokens = _special_tokens(config)
    if has_added or not _special_tokens(_read_object(folder / "special_tokens_map.json")) <= tokens:
        return None
    tokenizer = _load(folder / "tokenizer.json")
    # Transformers derives other settings from these two.
    if tokenizer is None or tokenizer.truncation is not None or tokenizer.padding is not None:
        return None
    added = tokenizer.get_added_tokens_decoder()
    if not _has_tokens(added, config.get("added_tokens_decoder") or {}):
        return None
    ids = {token.content: number for number, token in added.items() if _is_plain(token)}
    if not all(content in ids for _, content in tokens):
        return None
    named = {name: ids[content] for name, content in tokens}
    # Tokenizers of embedding models may lack an end token.
    end_id = named.get("eos_token", -1)
    return JsonTokenizer(tokenizer, end_id, named.get("pad_token", end_id))


def _special_tokens(config: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return pairs of a name of a special token, or of a list of special tokens, and the token.

    The token is "" if its value is not a string, because such a value may have flags.
    """
    values = [(name, config.get(name)) for name in sorted(_TOKENS)]
    for name in sorted(_TOKEN_LISTS):
        listed = config.get(name, [])
        values += [(name, each) for each in (listed if isinstance(listed, list) else [{}])]
    return {
        (name, value if isinstance(value, str) else "")
        for name, value in values
        if value is not None
    }


def _is_plain(token: Any) -> bool:
    """Return whether a `tokenizers.AddedToken` has the flags of a token without own flags."""
    return token.special and not any(getattr(token, flag) for flag in _FLAGS)


def _has_tokens(added: Mapping[int, Any], listed: Mapping[str, Any]) -> bool:
    """Return whether `added` has each token of `added_tokens_decoder`, with the same flags."""
    return all(
        number.isdecimal()
        and isinstance(token, dict)
        and (known := added.get(int(number))) is not None
        and all(getattr(known, name) == token.get(name) for name in ("content", "special", *_FLAGS))
        for number, token in listed.items()
    )


def _read_object(file: Path) -> Mapping[str, Any]:
    """Return the JSON object in `file`, or an empty one if the file is missing or invalid."""
    try:
        read = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _load(file: Path) -> Any:
    """Return the `tokenizers.Tokenizer` in `file`, or None if the file is missing or invalid."""
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(file))
    # The library raises `Exception` itself. Transformers reports the reason.
    except Exception:
        return None
