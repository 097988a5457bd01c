"""What one request asks for, and what every workload can do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
_NO_IDS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """What the user of a conversation adds to it, `think_s` after the answer before has ended."""

    input_ids: Ids
    num_output_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """One request: the ids of its prompt, and the length of its answer.

    `input_ids` are [n], or [rows, n] for a batch in one request. A model that takes text gets
    `text` in their place. `end_id` ends the answer sooner; without it, its length is exact (of a
    text: with `ignores_eos`). The `turns` of a conversation follow this request, each holding what
    was said before it.
    """

    input_ids: Ids
    num_output_tokens: int
    text: str | None = None
    end_id: int | None = None
    ignores_eos: bool = True
    turns: tuple[Turn, ...] = ()

    @classmethod
    def of_text(cls, text: str, num_output_tokens: int, *, ignores_eos: bool) -> RequestSpec:
        """A prompt for a model that takes text."""
        return cls(_NO_IDS, num_output_tokens, text, ignores_eos=ignores_eos)


def digest_of(contents: Iterable[object]) -> str:
    """What tells contents of one name apart, for the result file."""
    digest = hashlib.sha256()
    for each in contents:
        digest.update(repr(each).encode())
    return digest.hexdigest()[:16]


class Workload(Protocol):
    """Draws requests. `num_available` is how many there are; None if that has no end."""

    @property
    def num_available(self) -> int | None: ...

    def draw(
        self,
        num_requests: int,
        vocab_size: int,
        rng: np.random.Generator,
        start: int = 0,
        step: int = 1,
    ) -> list[RequestSpec]:
        """`num_requests` requests; a generator in the same state gives the same ones.

        A workload that has an order gives those of the numbers `start`, `start + step` and so on,
        before 0 those at its end.
        """

    def describe(self) -> dict[str, Any]:
        """What tells this workload from others, for the result file."""
