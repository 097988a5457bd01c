"""Test the choice of the sampler, and the limits of each sampler, by version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.stand_in_engines import installed_classes
from trtllm_serve_cli.runtime.engines.pytorch.installed import accepted_fields, adapt_arguments
from trtllm_serve_cli.runtime.engines.pytorch.sampler import (
    SamplerLimits,
    choose_sampler,
    find_limits,
)

PENALTIES = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
BEAMS = {"len_penalty", "early_stopping", "beam_search_diversity_rate"}
LOG_PROBS = {"num_top_log_probs", "return_prompt_log_probs"}
EAGLE = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model": "/e"}
NGRAM = {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 4}


def limits(version: str, **arguments: Any) -> SamplerLimits:
    installed = installed_classes(version).TorchLlmArgs
    return find_limits(adapt_arguments({"model": "/m", **arguments}, installed, version), version)


@pytest.mark.parametrize(
    ("version", "arguments", "chosen"),
    [
        ("1.0.0", {}, {"enable_trtllm_sampler": True}),
        ("1.2.1", {}, {"sampler_type": "TRTLLMSampler"}),
        ("1.3.0rc5", {}, {"sampler_type": "TRTLLMSampler"}),
        ("1.3.0rc25", {}, {"sampler_type": "TRTLLMSampler"}),
        ("1.3.0rc26", {}, {}),
        ("1.3.0", {}, {}),
        ("1.3.0rc5", {"sampler_type": "TorchSampler"}, {}),
        ("1.2.1", {"enable_trtllm_sampler": False}, {}),
        ("1.2.1", {"speculative_config": NGRAM}, {}),
    ],
)
def test_the_old_sampler_is_chosen_where_the_new_one_ignores_fields(
    version: str, arguments: dict[str, Any], chosen: dict[str, Any]
) -> None:
    fields = accepted_fields(installed_classes(version).TorchLlmArgs)
    assert choose_sampler(arguments, fields, version) == chosen


@pytest.mark.parametrize(
    ("version", "arguments", "ignored"),
    [
        ("1.2.1", {"sampler_type": "TRTLLMSampler"}, {"num_top_log_probs"}),
        ("1.0.0", {"enable_trtllm_sampler": True}, LOG_PROBS),
        (
            "1.0.0",
            {"enable_trtllm_sampler": False},
            {"bad_words", "min_p", "logit_bias"} | LOG_PROBS | PENALTIES | BEAMS,
        ),
        ("1.2.1", {"sampler_type": "TorchSampler"}, {"bad_words", "min_p"} | PENALTIES | BEAMS),
        ("1.3.0rc5", {"sampler_type": "TorchSampler"}, {"bad_words", "min_p"} | PENALTIES | BEAMS),
        ("1.3.0rc25", {"sampler_type": "TorchSampler"}, BEAMS),
        ("1.3.0rc26", {}, set()),
        ("1.3.0", {}, set()),
    ],
)
def test_fields_that_a_sampler_ignores(
    version: str, arguments: dict[str, Any], ignored: set[str]
) -> None:
    assert limits(version, **arguments).ignored == ignored


@pytest.mark.parametrize(
    ("version", "config", "can_sample"),
    [
        ("1.2.1", EAGLE, False),
        ("1.2.1", EAGLE | {"eagle3_one_model": False}, True),
        ("1.2.1", NGRAM, True),
        ("1.2.1", EAGLE | {"decoding_type": "DraftTarget"}, True),
        ("1.3.0rc5", EAGLE, False),
        ("1.3.0rc5", EAGLE | {"allow_advanced_sampling": True}, True),
        ("1.3.0rc25", EAGLE, True),
        ("1.3.0rc25", EAGLE | {"decoding_type": "DraftTarget"}, True),
        ("1.3.0rc26", {"decoding_type": "MTP", "num_nextn_predict_layers": 1}, True),
    ],
)
def test_sampling_with_speculative_decoding(
    version: str, config: dict[str, Any], can_sample: bool
) -> None:
    assert limits(version, speculative_config=config).can_sample is can_sample


@pytest.mark.parametrize(
    ("version", "config", "has_penalties", "can_enable_penalties"),
    [
        ("1.2.1", EAGLE, False, False),
        ("1.3.0rc26", EAGLE, False, True),
        ("1.3.0rc26", EAGLE | {"enable_penalty": True}, True, True),
        ("1.3.0rc26", EAGLE | {"enable_penalty": True, "use_dynamic_tree": True}, False, False),
    ],
)
def test_penalties_with_speculative_decoding(
    version: str, config: dict[str, Any], has_penalties: bool, can_enable_penalties: bool
) -> None:
    found = limits(version, speculative_config=config)
    assert (found.has_penalties, found.can_enable_penalties) == (
        has_penalties,
        can_enable_penalties,
    )
