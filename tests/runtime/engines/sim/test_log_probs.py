"""Test the log probabilities that the simulated engine makes up."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engines.sim.log_probs import (
    make_alternatives,
    make_log_prob,
    score_tokens,
)

VOCAB_SIZE = 30
_TOKENS = st.integers(0, VOCAB_SIZE - 1)


@given(_TOKENS, _TOKENS, st.integers(0, 20))
def test_alternatives_are_a_part_of_a_distribution(previous: int, token: int, count: int) -> None:
    alternatives = make_alternatives(previous, token, count, VOCAB_SIZE)
    ids = [each for each, _ in alternatives]
    values = [value for _, value in alternatives]
    assert len(ids) == count
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(range(VOCAB_SIZE))
    assert values == sorted(values, reverse=True)
    assert sum(map(math.exp, values)) < 1
    assert dict(alternatives).get(token, make_log_prob(previous, token)) == make_log_prob(
        previous, token
    )


@given(_TOKENS, _TOKENS)
def test_a_token_is_among_the_four_most_likely_ones(previous: int, token: int) -> None:
    assert token in dict(make_alternatives(previous, token, 4, VOCAB_SIZE))


def test_a_small_vocabulary_has_fewer_alternatives() -> None:
    assert len({each for each, _ in make_alternatives(1, 2, 20, 5)}) == 4


def test_the_first_token_has_no_score() -> None:
    assert score_tokens([7], 3, VOCAB_SIZE) == ((), ())
    log_probs, top = score_tokens([7, 8, 9], 0, VOCAB_SIZE)
    assert (log_probs, top) == ((make_log_prob(7, 8), make_log_prob(8, 9)), ())
