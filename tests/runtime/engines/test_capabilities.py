"""Test which of upstream's tensors each engine kind supports."""

from __future__ import annotations

from collections import Counter

import pytest

from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.runtime.engines.capabilities import FEATURES
from trtllm_serve_cli.runtime.engines.kinds import find_kind, kind_names, list_supported_inputs

# Inputs that do not use an optional feature: prompt, response length and response format.
PLAIN = {
    "input_ids", "input_lengths", "request_output_len", "end_id", "pad_id", "streaming", "stop",
    "exclude_input_in_output", "decoder_input_ids", "decoder_input_lengths",
    "text_input", "max_tokens", "stream",
}  # fmt: skip


def _inputs(model: str) -> set[str]:
    return {tensor.name for tensor in load_contracts()[model].inputs}


def _supported(kind: str) -> set[str]:
    unsupported = find_kind(kind).capabilities.unsupported
    return {tensor for each in FEATURES if each not in unsupported for tensor in each.tensors}


def test_every_input_belongs_to_one_feature() -> None:
    named = Counter(tensor for feature in FEATURES for tensor in feature.tensors)
    inputs = _inputs("tensorrt_llm") | _inputs("tensorrt_llm_bls")
    # These inputs of the llmapi layout have no equivalent in the other layouts.
    inputs |= {each for each in _inputs("llmapi") if each.startswith(("image_", "lora_"))}
    inputs.add("sampling_param_logits_post_processor_name")
    assert named == Counter(inputs - PLAIN)


@pytest.mark.parametrize("kind", ["openvino", "pytorch"])
def test_capabilities_match_the_tensors_that_the_worker_reads(kind: str) -> None:
    inputs = _inputs("tensorrt_llm")
    assert _supported(kind) & inputs == (list_supported_inputs(kind) - PLAIN) & inputs


def test_vllm_supports_all_features_but_beams() -> None:
    assert _supported("pytorch") - _supported("vllm") == {
        "beam_width", "len_penalty", "length_penalty", "early_stopping",
        "beam_search_diversity_rate",
    }  # fmt: skip


@pytest.mark.parametrize("kind", kind_names())
def test_capabilities_name_known_features(kind: str) -> None:
    capabilities = find_kind(kind).capabilities
    assert {*capabilities.unsupported, *capabilities.notes} <= {*FEATURES}
    assert not {*capabilities.unsupported} & {*capabilities.notes}
