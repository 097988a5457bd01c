"""Generate made-up log probabilities for the simulated engine.

The rank of a token depends only on the token and its predecessor. A token therefore has the same
log probability in a prompt and in a response. A token with rank 0 has a probability of 1/2, a token
with rank 1 has 1/4, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ...engine import TokenLogProb

# The number of ranks. Ranks go from 0 (most likely) to 3. After any token, about a quarter of the
# vocabulary has each rank.
_NUM_RANKS = 4
_FACTOR = 31


def make_log_prob(previous: int, token: int) -> float:
    """Return the log probability of `token` if it follows `previous`."""
    return _log_prob_at(_rank(previous, token))


def make_alternatives(
    previous: int, token: int, count: int, vocab_size: int
) -> tuple[TokenLogProb, ...]:
    """Return the `count` most likely tokens at the position of `token`, most likely first.

    Return at most `vocab_size - 1` tokens.
    """
    rank = _rank(previous, token)
    return tuple(
        (token if each == rank else (token + 1 + each) % vocab_size, _log_prob_at(each))
        for each in range(min(count, vocab_size - 1))
    )


def score_tokens(
    token_ids: Sequence[int], count: int, vocab_size: int
) -> tuple[tuple[float, ...], tuple[tuple[TokenLogProb, ...], ...]]:
    """Return the log probabilities of all tokens except the first, and the most likely tokens.

    The second tuple contains the `count` most likely tokens at each of these positions. It is empty
    if `count` is 0.
    """
    pairs = list(pairwise(token_ids))
    top = [make_alternatives(*pair, count, vocab_size) for pair in pairs] if count else []
    return tuple(make_log_prob(*pair) for pair in pairs), tuple(top)


def _rank(previous: int, token: int) -> int:
    return (_FACTOR * previous + token) % _NUM_RANKS


def _log_prob_at(rank: int) -> float:
    return -(rank + 1) * math.log(2)
