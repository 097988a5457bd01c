from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.model.metrics import NAMED_TIMES
from trtllm_serve_cli.bench.model.slo import Objective, parse_objective
from trtllm_serve_cli.errors import BadInput


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("ttft:p95<500ms", Objective("ttft", 95, 500)),
        ("itl:p99.9 <= 50 ms", Objective("itl", 99.9, 50)),
        ("latency:mean<2s", Objective("latency", None, 2000)),
        ("tpot:max<900us", Objective("tpot", 100, 0.9)),
        ("queue<1s", Objective("queue", 100, 1000)),
    ],
)
def test_parse_objective(text: str, objective: Objective) -> None:
    assert parse_objective(text) == objective


@given(
    st.builds(
        Objective,
        st.sampled_from(sorted(NAMED_TIMES)),
        st.none() | st.sampled_from([50.0, 90.0, 99.9, 100.0]),
        st.integers(1, 10**6).map(float),
    )
)
def test_parsing_inverts_str(objective: Objective) -> None:
    assert parse_objective(f"{objective.metric}:{_word(objective)}<{objective.limit_ms:.0f}ms") == (
        objective
    )


def _word(objective: Objective) -> str:
    return str(objective).partition(":")[2].partition("<")[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fast", "the format is"),
        ("speed:p95<1s", "'speed' is not a supported metric"),
        ("ttft:p95<500", "the format is"),
        ("ttft:p95<5days", "'days' is not a supported unit"),
        ("ttft:p0<5ms", "above 0"),
        ("ttft:p101<5ms", "at most 100"),
        ("ttft:p95>5ms", "the format is"),
        ("ttft:p95<0ms", "the limit must be above 0"),
    ],
)
def test_invalid_objective_is_rejected_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_objective(text)
    assert why in refused.value.why
    assert "--slo" in refused.value.next_step
