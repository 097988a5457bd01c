from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.model.records import spread_tokens


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_tokens_are_spread_evenly(num_tokens: int, num_chunks: int) -> None:
    spread = spread_tokens(num_tokens, num_chunks)
    assert (sum(spread), len(spread)) == (num_tokens, num_chunks)
    assert max(spread) - min(spread) <= 1
