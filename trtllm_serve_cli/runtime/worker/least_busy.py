"""Choose the engine for a request if a model has several."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

_Candidate = TypeVar("_Candidate")


class LeastBusyChooser:
    """Chooses the candidate with the fewest requests in flight. Equal candidates take turns.

    The first turn is random, so that idle processes do not all send their first request to the same
    engine.
    """

    def __init__(self) -> None:
        self._turns = itertools.count(random.randrange(2**16))

    def choose(
        self, candidates: Sequence[_Candidate], count_in_flight: Callable[[_Candidate], int]
    ) -> _Candidate:
        """Return one of the candidates. There must be at least one."""
        turn = next(self._turns) % len(candidates)
        return min([*candidates[turn:], *candidates[:turn]], key=count_in_flight)
