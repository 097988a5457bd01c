"""Test the conversion of requests to LLM API arguments."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.runtime.engine import GenerationRequest, InvalidRequest
from trtllm_serve_cli.runtime.engines.pytorch.sampler import SamplerLimits
from trtllm_serve_cli.runtime.engines.pytorch.sampling import (
    check_servable,
    long_bad_words,
    sampling_arguments,
)

GREEDY = {
    "max_tokens": 8,
    "end_id": -1,
    "pad_id": 0,
    "n": 1,
    "best_of": 1,
    "detokenize": False,
    "include_stop_str_in_output": True,
    "top_k": 1,
}


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(**{"id": 1, "input_ids": (1, 2), "max_new_tokens": 8, **fields})


def describe(value: object) -> str:
    """Return a test id that is the same in each process, unlike the order of a set."""
    return repr(value.name) if isinstance(value, SamplerLimits) else str(value)


@pytest.mark.parametrize(
    ("fields", "differences"),
    [
        ({}, {}),
        ({"end_id": 7}, {"end_id": 7, "pad_id": 7}),
        ({"temperature": 0.7}, {}),
        ({"temperature": 0.0, "top_p": 0.9}, {}),
        ({"num_return_sequences": 3}, {"n": 3, "best_of": 3}),
        ({"top_p": 0.9}, {"top_k": 0, "top_p": 0.9}),
        ({"top_k": 50}, {"top_k": 50, "top_p": 1.0}),
        (
            {"top_k": 50, "top_p": 0.9, "temperature": 0.7, "seed": 3},
            {"top_k": 50, "top_p": 0.9, "temperature": 0.7, "seed": 3},
        ),
        (
            {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3},
            {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3},
        ),
        ({"min_tokens": 4}, {"min_tokens": 4}),
        (
            {"stop_words": ((3,), (4, 5)), "bad_words": ((6,), (7, 8))},
            {"stop_token_ids": [3], "bad_token_ids": [6]},
        ),
        ({"return_log_probs": True}, {"logprobs": 1}),
        ({"num_top_log_probs": 3}, {"logprobs": 3}),
        (
            {"return_prompt_log_probs": True, "num_top_log_probs": 2},
            {"logprobs": 2, "prompt_logprobs": 2},
        ),
        ({"return_prompt_log_probs": True}, {"prompt_logprobs": 1}),
        ({"min_p": 0.1}, {"min_p": 0.1}),
        ({"return_perf_metrics": True}, {"return_perf_metrics": True}),
    ],
    ids=describe,
)
def test_sampling_arguments(fields: dict[str, Any], differences: dict[str, Any]) -> None:
    assert sampling_arguments(request(**fields)) == GREEDY | differences


def test_beam_search_arguments() -> None:
    fields = {
        "beam_width": 4, "num_return_sequences": 2, "len_penalty": 1.5, "early_stopping": True,
        "beam_search_diversity_rate": 0.5,
    }  # fmt: skip
    expected = GREEDY | {
        "n": 2, "best_of": 4, "use_beam_search": True, "length_penalty": 1.5, "early_stopping": 1,
        "beam_search_diversity_rate": 0.5,
    }  # fmt: skip
    del expected["top_k"]
    assert sampling_arguments(request(**fields)) == expected


def test_long_bad_words_have_several_tokens() -> None:
    assert long_bad_words(request(bad_words=((6,), (7, 8)))) == [[7, 8]]


NGRAM = {"speculative_config": {"decoding_type": "NGram"}}
EAGLE = {"speculative_config": {"decoding_type": "Eagle"}}
ANY, GREEDY_ONLY = SamplerLimits(can_sample=True), SamplerLimits()
PENALIZES = SamplerLimits(can_sample=True, has_penalties=True, can_enable_penalties=True)
TORCH_SAMPLER = SamplerLimits("the TorchSampler of TensorRT-LLM 1.2.1", frozenset(
    ("bad_words", "repetition_penalty", "len_penalty")
))  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "llm", "sampler", "why"),
    [
        (
            {"beam_width": 2},
            {"max_beam_width": 4},
            ANY,
            "beam_width is 2, but with TensorRT-LLM's PyTorch backend, it must equal the model's "
            "max_beam_width. Set beam_width to 4, or serve the model with max_beam_width=2.",
        ),
        (
            {"beam_width": 2, "stop_words": ((1, 2),)},
            {"max_beam_width": 2},
            ANY,
            "stop_words_list contains a multi-token stop word, which is not supported with a "
            "beam_width of 2. Omit the word, or send a single-token stop word.",
        ),
        (
            {"guide_type": "json"},
            {},
            ANY,
            "guided_decoding_guide_type is not supported, because this model is served without "
            "guided decoding. Omit guided_decoding_guide_type, or serve the model with "
            "guided_decoding_backend=xgrammar.",
        ),
        (
            {"input_ids": (1,) * 9},
            {"max_num_tokens": 8},
            ANY,
            "The prompt has 9 tokens, but a step can process at most 8 tokens "
            "(max_num_tokens). Shorten the prompt, or serve the model with "
            "enable_chunked_context=true.",
        ),
        (
            {"repetition_penalty": 1.1},
            NGRAM,
            ANY,
            "repetition_penalty is not supported with speculative decoding (NGram). Omit "
            "repetition_penalty, or serve the model without speculative decoding.",
        ),
        (
            {"top_p": 0.9},
            EAGLE,
            GREEDY_ONLY,
            "random sampling (runtime_top_k or runtime_top_p) is not supported with speculative "
            "decoding (Eagle). Use greedy decoding, or serve the model without speculative "
            "decoding.",
        ),
        (
            {"presence_penalty": 0.1},
            EAGLE,
            SamplerLimits(can_enable_penalties=True),
            "presence_penalty is not supported with speculative decoding (Eagle). Omit "
            'presence_penalty, or serve the model with llm_args={"speculative_config": '
            '{"enable_penalty": true}}.',
        ),
        (
            {"bad_words": ((1,),)},
            EAGLE,
            PENALIZES,
            "bad_words_list is not supported with speculative decoding (Eagle). Omit "
            "bad_words_list, or serve the model without speculative decoding.",
        ),
        (
            {"bad_words": ((1,),)},
            {},
            TORCH_SAMPLER,
            "bad_words_list is not supported by the TorchSampler of TensorRT-LLM 1.2.1. Omit "
            'bad_words_list, or serve the model with llm_args={"sampler_type": "TRTLLMSampler"}.',
        ),
        (
            {"repetition_penalty": 1.2},
            {},
            TORCH_SAMPLER,
            "repetition_penalty is not supported by the TorchSampler of TensorRT-LLM 1.2.1. Omit "
            'repetition_penalty, or serve the model with llm_args={"sampler_type": '
            '"TRTLLMSampler"}.',
        ),
    ],
    ids=describe,
)
def test_rejects_what_the_model_cannot_run(
    fields: dict[str, Any], llm: dict[str, Any], sampler: SamplerLimits, why: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_servable(request(**fields), llm, sampler)
    assert str(raised.value) == why


@pytest.mark.parametrize(
    ("fields", "llm", "sampler"),
    [
        ({}, {}, ANY),
        ({"beam_width": 4}, {"max_beam_width": 4}, ANY),
        ({"guide_type": "json"}, {"guided_decoding_backend": "xgrammar"}, ANY),
        (
            {"input_ids": (1,) * 9},
            {"max_num_tokens": 8, "enable_chunked_prefill": True},
            ANY,
        ),
        ({"top_p": 0.9}, NGRAM, ANY),
        ({"top_p": 0.9, "temperature": 0.0}, EAGLE, GREEDY_ONLY),
        ({"top_p": 0.9, "repetition_penalty": 1.2}, EAGLE, PENALIZES),
        ({"repetition_penalty": 1.0, "presence_penalty": 0.0}, {}, TORCH_SAMPLER),
    ],
    ids=describe,
)
def test_accepts_what_the_model_can_run(
    fields: dict[str, Any], llm: dict[str, Any], sampler: SamplerLimits
) -> None:
    check_servable(request(**fields), llm, sampler)
