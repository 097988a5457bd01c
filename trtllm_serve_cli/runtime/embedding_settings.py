"""Define the settings of embedding models.

This module must not import NumPy, because the command line imports this module.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .engine import InvalidRequest

# The supported pooling modes of sentence-transformers.
POOLING_MODES = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def unknown_pooling(mode: object) -> ValueError:
    """Return the error for a pooling mode that is not one of the `POOLING_MODES`."""
    return ValueError(f"pooling is {mode!r}; it must be one of {', '.join(POOLING_MODES)}")


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """The settings of an embedding model.

    - `dimension`: the number of values in an embedding.
    - `pooling`: the pooling mode, which is one of the `POOLING_MODES`.
    - `is_normalized`: true if embeddings are scaled to length 1.
    - `is_matryoshka`: true if clients can request truncated embeddings.
    - `matryoshka_dimensions`: the supported lengths of truncated embeddings. If the tuple is empty,
      all lengths up to `dimension` are supported.
    - `prompts`: maps prompt names to prompts. If a request contains a prompt name, the prompt is
      prepended to the inputs.
    """

    dimension: int
    pooling: str = "mean"
    is_normalized: bool = False
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the settings as JSON for a parameter in `config.pbtxt`."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> EmbeddingSettings:
        """Read settings from decoded JSON.

        Raise `TypeError` if `dimension` is missing. Raise `TypeError` or `ValueError` if
        `matryoshka_dimensions` cannot be converted to integers. Raise `ValueError` if `pooling` is
        not one of the `POOLING_MODES`. Other values are not checked, and unknown fields are
        ignored.
        """
        known = {each: fields[each] for each in cls.__slots__ if each in fields}
        sizes = tuple(int(each) for each in fields.get("matryoshka_dimensions", ()))
        settings = cls(**{**known, "matryoshka_dimensions": sizes})
        if settings.pooling not in POOLING_MODES:
            raise unknown_pooling(settings.pooling)
        return settings

    def check_dimensions(self, dimensions: int) -> None:
        """Raise `InvalidRequest` if the model cannot compute embeddings of this size."""
        if dimensions == self.dimension:
            return
        if not self.is_matryoshka:
            raise InvalidRequest(
                f"dimensions is {dimensions}, but this model supports only {self.dimension} "
                "dimensions, because its checkpoint sets neither matryoshka_dimensions nor "
                "is_matryoshka; omit dimensions"
            )
        sizes = self.matryoshka_dimensions
        if sizes and dimensions not in sizes:
            valid = sorted({self.dimension, *(each for each in sizes if each < self.dimension)})
            raise InvalidRequest(
                f"dimensions is {dimensions}; it must be one of {', '.join(map(str, valid))}"
            )
        if not 1 <= dimensions <= self.dimension:
            raise InvalidRequest(
                f"dimensions is {dimensions}; it must be between 1 and {self.dimension}"
            )

    def find_prompt(self, name: str) -> str:
        """Return the text of the prompt `name`, or "" if `name` is empty.

        Raise `InvalidRequest` if the model does not have a prompt with this name.
        """
        if not name:
            return ""
        if (prompt := self.prompts.get(name)) is None:
            known = ", ".join(self.prompts) or "none"
            raise InvalidRequest(
                f"prompt_name is {name!r}, but this model has no prompt with this name; available "
                f"prompts: {known}"
            )
        return prompt
