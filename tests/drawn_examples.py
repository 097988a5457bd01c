"""Draw the examples of a Hypothesis strategy, to check which kinds of them occur."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import given, seed, settings
from hypothesis.strategies import SearchStrategy

_Example = TypeVar("_Example")


def draw_examples(strategy: SearchStrategy[_Example], *, factor: int = 1) -> list[_Example]:
    """Return as many examples as a test draws by default, or with --full, times `factor`."""
    drawn = []

    @seed(0)
    @settings(max_examples=factor * settings().max_examples)
    @given(strategy)
    def collect(example: _Example) -> None:
        drawn.append(example)

    collect()
    return drawn
