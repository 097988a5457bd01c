"""Define the specification of a request and the interface that workloads implement."""

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
    """The next request of a conversation, due `think_s` after the end of the previous response.

    `input_ids` are only the tokens that the user adds to the history.
    """

    input_ids: Ids
    num_output_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """The specification of one request.

    `input_ids` has the shape [n], or [rows, n] for a batch in one request. A model with text input
    receives `text` instead. `num_output_tokens` is the maximum output length, because the token
    `end_id` may end the output earlier. The length is exact without `end_id` (for text: with
    `ignores_eos`). `turns` are the later requests of a conversation.
    """

    input_ids: Ids
    num_output_tokens: int
    text: str | None = None
    end_id: int | None = None
    ignores_eos: bool = True
    turns: tuple[Turn, ...] = ()

    @classmethod
    def of_text(cls, text: str, num_output_tokens: int, *, ignores_eos: bool) -> RequestSpec:
        """Return a request for a model with text input."""
        return cls(_NO_IDS, num_output_tokens, text, ignores_eos=ignores_eos)


def digest_of(contents: Iterable[object]) -> str:
    """Return a digest, so that result files distinguish workloads with the same name."""
    digest = hashlib.sha256()
    for each in contents:
        digest.update(repr(each).encode())
    return digest.hexdigest()[:16]


class Workload(Protocol):
    """A source of requests; `num_available` is the number of requests, `None` if unlimited."""

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
        """Draw `num_requests` requests; the same state of `rng` gives the same requests.

        Random ids are below `vocab_size`. An ordered workload returns the requests with the numbers
        `start`, `start + step` and so on. Numbers below 0 count from the end.
        """

    def describe(self) -> dict[str, Any]:
        """Return a description that identifies the workload in result files."""
