"""A fake of the module `transformers`: each character is a token, its code point the id."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

BOS, EOS = 1, 2


class Characters:
    eos_token_id = EOS
    pad_token_id: int | None = None

    def __len__(self) -> int:
        return 256

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [BOS] * add_special_tokens + [ord(each) for each in text]

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool = True,
    ) -> str:
        special = (BOS, EOS) if skip_special_tokens else ()
        text = "".join(chr(each) for each in token_ids if each not in special)
        return text.replace(" .", ".") if clean_up_tokenization_spaces else text


class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, directory: Path, **options: Any) -> Characters:
        return Characters()
