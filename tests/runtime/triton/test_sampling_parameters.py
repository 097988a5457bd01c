"""Sampling parameters of the vllm layout."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import GenerationRequest, InvalidRequest
from trtllm_serve_cli.runtime.triton.sampling_parameters import parse_sampling_parameters


def parse(**values: Any) -> Any:
    return parse_sampling_parameters(json.dumps(values))


def is_greedy(**values: Any) -> bool:
    fields = parse(**values).fields
    return GenerationRequest(id=0, input_ids=(1,), **fields).is_greedy


def test_defaults_are_those_of_vllm() -> None:
    assert parse().fields == {
        "max_new_tokens": 16,
        "temperature": 1.0,
        "top_p": 1.0,
        "num_return_sequences": 1,
    }
    assert not is_greedy() and is_greedy(temperature=0)
    assert parse_sampling_parameters("") == parse()


def test_numbers_and_flags_can_be_strings() -> None:
    parsed = parse(temperature="0.1", max_tokens="100", ignore_eos="false", n="2")
    assert parsed.fields["temperature"] == 0.1
    assert parsed.fields["max_new_tokens"] == 100
    assert parsed.fields["num_return_sequences"] == 2
    assert parsed.ignores_end is False


def test_words_are_one_text_or_a_list() -> None:
    assert parse(stop="a").stops == parse(stop=["a"]).stops == ("a",)
    assert parse(stop_token_ids=[1, 2]).stop_token_ids == (1, 2)
    assert parse(bad_words=["a", "b"]).bad_words == ("a", "b")


def test_no_token_limit_is_null() -> None:
    assert "max_new_tokens" not in parse(max_tokens=None).fields


def test_all_tokens_are_allowed_with_a_negative_top_k() -> None:
    assert parse(top_k=-1).fields["top_k"] == 0


def test_bias_has_token_ids_as_keys() -> None:
    fields = parse(min_p="0.2", logit_bias={"5": -100, "7": 1.5}).fields
    assert (fields["min_p"], fields["logit_bias"]) == (0.2, ((5, -100.0), (7, 1.5)))


@pytest.mark.parametrize("name", ["structured_outputs", "guided_decoding"])
def test_guide_is_an_object_or_its_text(name: str) -> None:
    guide = {"json": {"type": "object"}}
    for value in (guide, json.dumps(guide)):
        fields = parse(**{name: value}).fields
        assert fields["guide_type"] == "json_schema"
        assert json.loads(fields["guide"]) == {"type": "object"}


def test_values_without_effect_are_accepted() -> None:
    assert parse(detokenize=True, logits_processors=None, triton_x=1) == parse()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "sampling_parameters is not a JSON object; send an object"),
        (
            '{"allowed_token_ids": [5]}',
            "sampling_parameters contains allowed_token_ids, which is not supported; omit "
            "allowed_token_ids",
        ),
        (
            '{"logit_bias": {"a": 1}}',
            "{'a': 1} is not a valid value for logit_bias in sampling_parameters; send a value "
            "that vLLM accepts for logit_bias",
        ),
        (
            '{"max_tokens": "many"}',
            "'many' is not a valid value for max_tokens in sampling_parameters; "
            "send a value that vLLM accepts for max_tokens",
        ),
        (
            '{"stop": 3}',
            "3 is not a valid value for stop in sampling_parameters; "
            "send a value that vLLM accepts for stop",
        ),
        (
            '{"structured_outputs": {"choice": ["a"]}}',
            "structured_outputs in sampling_parameters is {'choice': ['a']}, which is not a valid "
            "guide; set exactly one of the keys json, json_object, regex, grammar, structural_tag",
        ),
    ],
)
def test_rejects_an_invalid_parameter(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_sampling_parameters(text)
    assert str(raised.value) == why


def test_rejects_json_that_is_nested_too_deeply() -> None:
    with pytest.raises(InvalidRequest, match=r"^sampling_parameters is not valid JSON"):
        parse_sampling_parameters("[" * 100_000)
    with pytest.raises(InvalidRequest, match="is not a valid value for guided_decoding"):
        parse(guided_decoding="[" * 100_000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ("n", "max_tokens", "temperature", "top_k", "seed", "stop", "stop_token_ids", "bad_words",
     "ignore_eos", "logprobs", "lora_name", "logit_bias", "min_p",
     "structured_outputs", "skip_special_tokens")
)  # fmt: skip


@given(st.dictionaries(NAMES, JSON))
def test_any_json_is_parsed_or_rejected(values: dict[str, Any]) -> None:
    try:
        parse_sampling_parameters(json.dumps(values))
    except InvalidRequest as error:
        assert "sampling_parameters" in str(error)
