"""Define request specifications and the interface that workloads implement."""

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
    """A later request in a conversation, due `think_s` seconds after the previous response ends.

    `input_ids` contains only the tokens that the user adds to the history.
    """

    input_ids: Ids
    num_output_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """The specification of one request.

    `input_ids` has shape [n], or [rows, n] if the request is a batch. A model with text input
    receives `text` instead. The output has exactly `num_output_tokens` tokens if `end_id` is `None`
    (for token ids) or if `ignores_eos` is true (for text). Otherwise, the end token may end the
    output earlier. `turns` contains the later requests in the conversation.
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
    """Return a hash of `contents` that distinguishes workloads with the same name in results."""
    digest = hashlib.sha256()
    for each in contents:
        digest.update(repr(each).encode())
    return digest.hexdigest()[:16]


class Workload(Protocol):
    """A source of requests.

    `num_available` is the workload's default number of requests, for example the number of entries
    in a data set. It is `None` if the workload does not define a number.
    """

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
        """Draw `num_requests` requests.

        The same state of `rng` produces the same requests. Random ids are below `vocab_size`. A
        data set returns the requests numbered `start`, `start + step` and so on, and negative
        numbers count back from the end. Other workloads ignore `start` and `step`.
        """

    def describe(self) -> dict[str, Any]:
        """Return a description that identifies the workload in result files."""
