"""Test the conversion of requests to configs and guides for OpenVINO GenAI."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("openvino_genai", reason="pip install 'trtllm-serve-cli[embedded]'")

from trtllm_serve_cli.runtime.engine import GenerationRequest, InvalidRequest
from trtllm_serve_cli.runtime.engines.openvino.request import Drafts, Guide, find_guide, make_config

_DEFAULTS = {
    "ignore_eos": True,
    "max_new_tokens": 8,
    "min_new_tokens": 0,
    "logprobs": 0,
    "do_sample": False,
    "num_return_sequences": 1,
    "num_beams": 1,
    "num_beam_groups": 1,
    "stop_strings": set(),
}


class Tokenizer:
    """A tokenizer with ASCII codes as token ids. Token 0 is a special token without text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(map(chr, token_ids)) if token_ids != [0] else ""


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(1, (5, 6), **{"max_new_tokens": 8, **fields})


def config_of(drafts: Drafts | None = None, **fields: Any) -> Any:
    return make_config(request(**fields), Tokenizer(), drafts)


def word(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"end_id": 2}, {"ignore_eos": False, "eos_token_id": 2, "stop_token_ids": {2}}),
        ({"min_tokens": 3, "return_log_probs": True}, {"min_new_tokens": 3, "logprobs": 1}),
        ({"temperature": 0.7}, {}),
        ({"top_k": 1, "seed": 4, "min_p": 0.5}, {}),
        ({"top_k": 5, "temperature": 0.0}, {}),
        ({"top_k": 5, "seed": 4}, {"do_sample": True, "top_k": 5, "top_p": 1.0, "rng_seed": 4}),
        ({"top_p": 0.5, "temperature": 0.7}, {"do_sample": True, "top_p": 0.5, "temperature": 0.7}),
        ({"num_return_sequences": 2}, {"do_sample": True, "top_k": 1, "num_return_sequences": 2}),
        ({"beam_width": 3}, {"num_beams": 3, "length_penalty": 1.0, "num_beam_groups": 1}),
        (
            {"beam_width": 3, "len_penalty": 0.0, "beam_search_diversity_rate": 2.0},
            {"num_beams": 3, "length_penalty": 0.0, "num_beam_groups": 3, "diversity_penalty": 2.0},
        ),
        (
            {"repetition_penalty": 1.5, "presence_penalty": -2.0, "frequency_penalty": 2.0},
            {"repetition_penalty": 1.5, "presence_penalty": -2.0, "frequency_penalty": 2.0},
        ),
        (
            {"stop_words": (word("ab"), word("c"))},
            {"stop_strings": {"ab", "c"}, "include_stop_str_in_output": True},
        ),
    ],
)
def test_config_has_the_fields_of_the_request(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    expected = {**_DEFAULTS, **expected}
    config = config_of(**fields)
    actual = {name: getattr(config, name) for name in expected}
    assert actual == {
        name: pytest.approx(value) if isinstance(value, float) else value
        for name, value in expected.items()
    }


@pytest.mark.parametrize(("sent", "min_p"), [(None, 0.0), (0.25, 0.25), (1.0, 0.999)])
def test_min_p_is_below_1(sent: float | None, min_p: float) -> None:
    assert config_of(top_p=0.9, min_p=sent).min_p == pytest.approx(min_p)


@pytest.mark.parametrize(("are_looked_up", "max_ngram_size"), [(True, 3), (False, 0)])
def test_config_enables_drafts(are_looked_up: bool, max_ngram_size: int) -> None:
    config = config_of(Drafts(4, are_looked_up))
    assert (config.num_assistant_tokens, config.max_ngram_size) == (4, max_ngram_size)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"presence_penalty": 2.5}, "presence_penalty must be between -2 and 2, but is 2.5"),
        (
            {"beam_width": 2, "repetition_penalty": 1.5},
            "repetition_penalty is 1.5, which is not supported with a beam_width of 2. Omit "
            "repetition_penalty, or set beam_width to 1.",
        ),
        (
            {"stop_words": ((0,),)},
            "stop_words_list contains the word [0], which decodes to an empty string; remove the "
            "word",
        ),
        (
            {"num_top_log_probs": 2},
            "top_logprobs is not supported by the openvino engine kind, because OpenVINO GenAI "
            "returns only the log probability of the selected token. Omit top_logprobs.",
        ),
        (
            {"logit_bias": ((5, 1.0),)},
            "embedding_bias (embedding bias) is not supported by the openvino engine kind, because "
            "OpenVINO GenAI does not support a logit bias. Omit embedding_bias, or serve this "
            "model with the pytorch or sim or tensorrt or vllm engine kind.",
        ),
    ],
)
def test_rejects_what_openvino_does_not_support(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        config_of(**fields)
    assert str(raised.value) == why


@pytest.mark.parametrize("neutral", [{"repetition_penalty": 1.0}, {"presence_penalty": 0.0}])
def test_beams_accept_a_neutral_penalty(neutral: dict[str, float]) -> None:
    assert config_of(beam_width=2, **neutral).num_beams == 2


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"beam_width": 2}, "beam_width is 2, but speculative decoding"),
        ({"num_return_sequences": 2}, "num_return_sequences is 2, but speculative decoding"),
        ({"guide_type": "regex"}, "guided_decoding_guide_type is not supported with speculative"),
        ({"bad_words": (word("a"),)}, "bad_words_list is not supported with speculative"),
    ],
)
def test_speculative_decoding_rejects_incompatible_requests(
    fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        config_of(Drafts(4, True), **fields)


def test_a_plain_request_has_no_guide() -> None:
    assert find_guide(request(), Tokenizer()) is None


def test_a_guide_is_passed_on() -> None:
    expected = Guide("regex", "[0-9]", "guided_decoding_guide")
    assert find_guide(request(guide_type="regex", guide="[0-9]"), Tokenizer()) == expected


def test_bad_words_become_a_guide_with_the_shortest_words() -> None:
    guide = find_guide(request(bad_words=(word("bad"), word("ba"), word("c"))), Tokenizer())
    form = {"type": "any_text", "excludes": ["c", "ba"]}
    assert guide == Guide(
        "structural_tag", json.dumps({"type": "structural_tag", "format": form}), "bad_words_list"
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"guide_type": "regex", "bad_words": (word("a"),)}, "bad_words_list cannot be combined"),
        ({"bad_words": (word("a\0"),)}, "bad_words_list contains a word with a NUL character"),
        (
            {"bad_words": ((0,),)},
            r"contains the word \[0\], which decodes to an empty string",
        ),
    ],
)
def test_rejects_what_no_guide_can_express(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        find_guide(request(**fields), Tokenizer())
