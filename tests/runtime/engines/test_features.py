"""What each engine kind can do with upstream's tensors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.engines.features import (
    ENGINE_KINDS,
    FEATURES,
    Feature,
    explain_refusal,
    refuse_set,
)
from trtllm_serve_cli.runtime.triton.tensors import UNDERSTOOD

# What is no wish: the prompt, how long to go on, how to answer.
PLAIN = {
    "input_ids", "input_lengths", "request_output_len", "end_id", "pad_id", "streaming", "stop",
    "exclude_input_in_output", "decoder_input_ids", "decoder_input_lengths",
    "text_input", "max_tokens", "stream",
}  # fmt: skip


def _inputs(model: str) -> set[str]:
    return {tensor.name for tensor in load_contracts()[model].inputs}


def test_every_input_belongs_to_one_feature() -> None:
    named = Counter(tensor for feature in FEATURES for tensor in feature.tensors)
    asked = _inputs("tensorrt_llm") | _inputs("tensorrt_llm_bls")
    assert named == Counter(asked - PLAIN)


@pytest.mark.parametrize("kind", ["openvino", "pytorch"])
def test_the_table_says_what_the_kinds_of_our_worker_understand(kind: str) -> None:
    served = {
        tensor for feature in FEATURES if kind not in feature.without for tensor in feature.tensors
    }
    assert served & _inputs("tensorrt_llm") == (UNDERSTOOD - PLAIN) & _inputs("tensorrt_llm")


def test_vllm_understands_the_same_but_beams() -> None:
    def served(kind: str) -> set[str]:
        return {tensor for each in FEATURES if kind not in each.without for tensor in each.tensors}

    assert served("pytorch") - served("vllm") == {
        "beam_width", "len_penalty", "length_penalty", "early_stopping",
        "beam_search_diversity_rate",
    }  # fmt: skip


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_only_known_kinds_are_without(feature: Feature) -> None:
    assert set(feature.without) <= set(ENGINE_KINDS)


def test_a_refusal_names_the_tensor_the_kind_and_who_can() -> None:
    assert explain_refusal("return_context_logits", "openvino") == (
        "return_context_logits (logits) is not supported by the engine kind openvino: OpenVINO "
        "GenAI keeps the logits to itself; leave it out, or serve this model with the engine kind "
        "tensorrt"
    )


@pytest.mark.parametrize(
    "given",
    [[[1]], [[0.0, 0.5]], [[True]], np.array([[b"", b"x"]], dtype=object), [[float("nan")]]],
    ids=str,
)
def test_a_tensor_that_nothing_acts_on_is_refused_when_it_asks_for_something(given: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        refuse_set({"embedding_bias": np.asarray(given)}.get, ["embedding_bias"], "openvino")
    assert str(refused.value) == (
        "embedding_bias (embedding bias) is not supported by the engine kind openvino: OpenVINO "
        "GenAI takes no bias on its logits; leave it out, or serve this model with the engine kind "
        "tensorrt"
    )


@pytest.mark.parametrize(
    "given",
    [None, [[0]], [[0.0]], [[False]], np.zeros((1, 0)), np.array([[b""]], dtype=object)],
    ids=str,
)
def test_a_tensor_that_asks_for_nothing_is_let_through(given: Any) -> None:
    tensor = None if given is None else np.asarray(given)
    refuse_set({"embedding_bias": tensor}.get, ["embedding_bias"], "openvino")
