"""Checks of requests against an engine's limits."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.runtime.engine import EngineLimits, GenerationRequest, InvalidRequest
from trtllm_serve_cli.runtime.request_check import check_request, fit_to_vocabulary

LIMITS = EngineLimits(max_seq_len=10, max_beam_width=3, vocab_size=100)


def _request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(**{"id": 1, "input_ids": (1, 2), "max_new_tokens": 4, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"input_ids": (0, 99)},
        {"input_ids": (100, 2**31 - 1)},
        {"max_new_tokens": 8},
        {"max_new_tokens": 1},
        {"beam_width": 3, "num_return_sequences": 3},
        {"temperature": 0.0, "top_k": 0, "top_p": 0.0},
        {"top_k": 100, "top_p": 1.0},
        {"min_tokens": 4},
        {"num_return_sequences": 128},
        {"stop_words": ((99,), (0, 1)), "bad_words": ((5,),)},
        {"min_p": 1.0, "num_top_log_probs": 20, "logit_bias": ((0, -1e9), (99, 5.0))},
    ],
    ids=str,
)
def test_accepts_a_request_at_the_limits(fields: dict[str, Any]) -> None:
    check_request(_request(**fields), LIMITS)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"input_ids": ()},
            "input_ids is empty; send a prompt with at least one token",
        ),
        (
            {"input_ids": (-1, 100)},
            "input_ids contains -1, which is not a token id; send non-negative ids",
        ),
        (
            {"stop_words": ((1,), (2, 100))},
            "stop_words_list contains 100, which is not a token id of this model; send ids from "
            "0 to 99",
        ),
        (
            {"bad_words": ((-7,),)},
            "bad_words_list contains -7, which is not a token id of this model; send ids from "
            "0 to 99",
        ),
        (
            {"bad_words": ((1,) * 4000, (2,) * 97)},
            "bad_words_list has 4097 tokens; send at most 4096 tokens",
        ),
        (
            {"max_new_tokens": 0},
            "request_output_len (max_tokens) is 0; request at least 1 token",
        ),
        (
            {"input_ids": (1,) * 10},
            "the prompt has 10 tokens, but the prompt and the response must fit in this model's "
            "context of 10 tokens (max_seq_len); shorten the prompt",
        ),
        (
            {"max_new_tokens": 9},
            "request_output_len (max_tokens) is 9, but only 8 of the 10 tokens in this "
            "model's context (max_seq_len) remain after the prompt; request at most 8",
        ),
        ({"beam_width": 0}, "beam_width is 0; it must be between 1 and 3"),
        ({"beam_width": 4}, "beam_width is 4; it must be between 1 and 3"),
        (
            {"num_return_sequences": 129},
            "num_return_sequences is 129; it must be between 1 and 128",
        ),
        ({"temperature": -0.5}, "temperature is -0.5; it must be between 0 and 10000"),
        ({"temperature": float("nan")}, "temperature is nan; it must be between 0 and 10000"),
        ({"top_k": 2**31 - 1}, "runtime_top_k is 2147483647; it must be between 0 and 100"),
        ({"top_k": 101}, "runtime_top_k is 101; it must be between 0 and 100"),
        ({"top_p": 1.5}, "runtime_top_p is 1.5; it must be between 0 and 1"),
        ({"seed": -1}, "seed is -1; it must be between 0 and 18446744073709551615"),
        (
            {"repetition_penalty": 0.0},
            "repetition_penalty is 0; it must be between 0.0001 and 10000",
        ),
        (
            {"presence_penalty": float("inf")},
            "presence_penalty is inf; it must be between -10000 and 10000",
        ),
        (
            {"frequency_penalty": -2e4},
            "frequency_penalty is -20000; it must be between -10000 and 10000",
        ),
        (
            {"len_penalty": 2e4},
            "len_penalty (length_penalty) is 20000; it must be between -10000 and 10000",
        ),
        (
            {"guide": "{}"},
            "guided_decoding_guide is set, but guided_decoding_guide_type is missing; set the type "
            "to one of json, json_schema, regex, ebnf_grammar, structural_tag",
        ),
        ({"min_tokens": 5}, "min_tokens is 5; it must be between 0 and 4"),
        ({"min_p": 1.5}, "min_p is 1.5; it must be between 0 and 1"),
        ({"num_top_log_probs": 21}, "num_top_log_probs is 21; it must be between 0 and 20"),
        (
            {"logit_bias": ((5, 1.0), (100, 1.0))},
            "embedding_bias contains 100, which is not a token id of this model; send ids from 0 "
            "to 99",
        ),
        (
            {"logit_bias": ((5, float("nan")),)},
            "embedding_bias contains NaN; replace NaN with a number",
        ),
        (
            {"beam_width": 2, "num_return_sequences": 3},
            "num_return_sequences is 3, but a beam search returns at most one sequence per beam; "
            "request at most 2 sequences (beam_width)",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_error_names_the_tensor_beyond_the_limits(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest) as rejected:
        check_request(_request(**fields), LIMITS)
    assert str(rejected.value) == why


def test_wraps_ids_beyond_the_vocabulary() -> None:
    wrapped = fit_to_vocabulary(_request(input_ids=(0, 99, 100, 2**31 - 1)), LIMITS)
    assert wrapped == _request(input_ids=(0, 99, 0, 47))


@pytest.mark.parametrize(
    ("end_id", "fitted"), [(0, 0), (99, 99), (-1, None), (100, None), (None, None)]
)
def test_ignores_an_end_id_beyond_the_vocabulary(end_id: int | None, fitted: int | None) -> None:
    assert fit_to_vocabulary(_request(end_id=end_id), LIMITS) == _request(end_id=fitted)
