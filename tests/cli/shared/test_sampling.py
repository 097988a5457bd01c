"""The sampling parameters that `tllm infer` adds to a request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.cli.shared.sampling import (
    complete_request,
    complete_sampling,
    draw_seed,
    has_seed,
)
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.runtime.engine import GenerationRequest


def complete(**fields: Any) -> dict[str, Any]:
    return complete_sampling(fields, lambda: 7)


@pytest.mark.parametrize(
    ("fields", "added"),
    [
        ({"temperature": 1.5}, {"top_k": 0, "top_p": 1.0, "seed": 7}),
        ({"seed": 3}, {"top_k": 0, "top_p": 1.0}),
        ({"top_p": 0.9}, {"top_k": 0, "seed": 7}),
        ({"top_k": 50}, {"seed": 7}),
        ({"top_k": 0}, {"top_p": 1.0, "seed": 7}),
        ({"top_k": 50, "top_p": 0.9, "seed": 0}, {}),
    ],
)
def test_one_option_is_enough_to_sample(fields: dict[str, Any], added: dict[str, Any]) -> None:
    assert complete(**fields) == added


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.0, "top_p": 0.9},
        {"top_k": 1, "temperature": 0.5},
        {"top_p": 0.0},
        {"beam_width": 4, "temperature": 0.5},
    ],
)
def test_greedy_requests_and_beam_search_stay_as_they_are(fields: dict[str, Any]) -> None:
    assert complete(**fields) == {}


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0, 2),
            "top_k": st.integers(0, 50),
            "top_p": st.floats(0, 1),
            "seed": st.integers(0, 2**63 - 1),
        },
    )
)
def test_a_completed_request_is_sampled_unless_greedy_decoding_was_requested(
    fields: dict[str, Any],
) -> None:
    completed = {**fields, **complete(**fields)}
    request = GenerationRequest(id=1, input_ids=(1,), max_new_tokens=1, **completed)
    requests_greedy = (
        not fields
        or fields.get("temperature") == 0
        or fields.get("top_k") == 1
        or (not fields.get("top_k") and fields.get("top_p") == 0)
    )
    assert request.is_greedy == requests_greedy
    assert requests_greedy or request.seed is not None


def test_drawn_seeds_differ_and_fit_int64() -> None:
    seeds = {draw_seed() for _ in range(100)}
    assert len(seeds) == 100 and 0 <= min(seeds) <= max(seeds) < 2**63


def test_seed_inputs_of_all_layouts() -> None:
    assert has_seed(frozenset()) and has_seed(frozenset({"text_input", "random_seed"}))
    assert not has_seed(frozenset({"text_input", "max_tokens"}))


def test_a_model_without_a_seed_receives_none() -> None:
    request = GenerateRequest("go", temperature=1.5)
    completed = complete_request(request, frozenset({"text_input"}))
    assert (completed.top_p, completed.seed) == (1.0, None)
    assert complete_request(request, frozenset({"seed"})).seed is not None
