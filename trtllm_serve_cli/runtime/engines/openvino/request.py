"""Convert a request to a generation config and a guide for OpenVINO GenAI."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import openvino_genai

from ...engine import GenerationRequest, InvalidRequest
from ...triton.word_lists import Words, leave_out_longer
from ..kinds import explain_rejection

# The maximum n-gram length for prompt lookup. Prompt lookup searches the prompt and the generated
# tokens for an earlier occurrence of the latest tokens. The tokens after the occurrence become
# draft tokens.
_NGRAM_SIZE = 3
# The maximum min-p that is passed to OpenVINO GenAI, which does not accept a min-p of 1.
_LARGEST_MIN_P = 0.999


@dataclass(frozen=True, slots=True)
class Guide:
    """A guide that constrains the response.

    `type` is the type of guide, for example json, and `text` is the guide itself. `tensor` is the
    request tensor that the guide was created from.
    """

    type: str
    text: str
    tensor: str


@dataclass(frozen=True, slots=True)
class Drafts:
    """The settings for speculative decoding.

    `num_tokens` is the number of draft tokens per step. If `are_looked_up` is true, the engine
    copies draft tokens from the prompt and the tokens generated so far (prompt lookup). Otherwise,
    a draft model generates them.
    """

    num_tokens: int
    are_looked_up: bool


def make_config(request: GenerationRequest, tokenizer: Any, drafts: Drafts | None) -> Any:
    """Return the generation config for `request`, without the guide (see `find_guide`).

    `drafts` is None if speculative decoding is disabled. Raise `InvalidRequest` if OpenVINO GenAI
    does not support the request, or if a stop word decodes to an empty string.
    """
    _check_supported(request)
    if drafts is not None:
        _check_speculative(request)
    _check_penalties(request)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request.max_new_tokens
    config.logprobs = int(request.return_log_probs)
    config.min_new_tokens = request.min_tokens or 0
    if request.end_id is None:
        config.ignore_eos = True
    else:
        config.eos_token_id = request.end_id
        config.stop_token_ids = {request.end_id}
    config.num_return_sequences = request.num_return_sequences
    if request.beam_width > 1:
        _set_beams(config, request)
    else:
        _set_sampling(config, request)
    _set_penalties(config, request)
    if request.stop_words:
        config.stop_strings = _texts(request.stop_words, "stop_words_list", tokenizer)
        config.include_stop_str_in_output = True
    if drafts is not None:
        config.num_assistant_tokens = drafts.num_tokens
        if drafts.are_looked_up:
            config.max_ngram_size = _NGRAM_SIZE
    return config


def find_guide(request: GenerationRequest, tokenizer: Any) -> Guide | None:
    """Return the request's guide, or a guide that excludes the request's bad words.

    Return None if the request has neither a guide nor bad words. Raise `InvalidRequest` if the
    request has both, or if the bad words cannot be excluded with a guide.
    """
    if request.guide_type is None and not request.bad_words:
        return None
    if request.guide_type is None:
        texts = _texts(request.bad_words, "bad_words_list", tokenizer)
        return Guide("structural_tag", _exclusion_guide(texts), "bad_words_list")
    if request.bad_words:
        raise InvalidRequest(
            "bad_words_list cannot be combined with guided_decoding_guide_type, because each "
            "requires a grammar and a request can use only one grammar. Omit bad_words_list and "
            "exclude the words in the guide instead."
        )
    return Guide(request.guide_type, request.guide, "guided_decoding_guide")


def _set_beams(config: Any, request: GenerationRequest) -> None:
    config.num_beams = request.beam_width
    config.length_penalty = 1.0 if request.len_penalty is None else request.len_penalty
    if request.early_stopping:
        config.stop_criteria = openvino_genai.StopCriteria.EARLY
    if request.beam_search_diversity_rate:
        # Put each beam in a separate group, because the diversity penalty applies only to tokens
        # that other groups have selected at the same position.
        config.num_beam_groups = request.beam_width
        config.diversity_penalty = request.beam_search_diversity_rate


def _set_sampling(config: Any, request: GenerationRequest) -> None:
    top_k, top_p = request.top_k or 0, request.top_p or 0.0
    if request.is_greedy and request.num_return_sequences == 1:
        return
    config.do_sample = True
    config.rng_seed = request.seed or 0
    config.temperature = request.temperature or 1.0
    if request.is_greedy:
        config.top_k = 1
        return
    if top_k:
        config.top_k = top_k
    config.top_p = top_p or 1.0
    config.min_p = min(request.min_p or 0.0, _LARGEST_MIN_P)


def _set_penalties(config: Any, request: GenerationRequest) -> None:
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        value = getattr(request, name)
        if value is not None:
            setattr(config, name, value)


def _exclusion_guide(texts: set[str]) -> str:
    """Return a structural tag that allows any text without the strings in `texts`.

    Raise `InvalidRequest` if a text in the tag contains a NUL character.
    """
    # A structural tag is invalid if an excluded word starts with another excluded word. Omit the
    # longer word: excluding the shorter word also excludes the longer one.
    shortest = leave_out_longer(texts)
    if any("\0" in text for text in shortest):
        raise InvalidRequest(
            "bad_words_list contains a word with a NUL character, which "
            "OpenVINO GenAI cannot exclude; omit the word"
        )
    form = {"type": "any_text", "excludes": shortest}
    return json.dumps({"type": "structural_tag", "format": form})


def _texts(words: Words, tensor: str, tokenizer: Any) -> set[str]:
    """Decode the words to text, so that they match text with any tokenization.

    Raise `InvalidRequest` if a word decodes to an empty string. `tensor` is the tensor name for the
    error message.
    """
    texts = set()
    for word in words:
        text = str(tokenizer.decode(list(word), skip_special_tokens=False))
        if not text:
            raise InvalidRequest(
                f"{tensor} contains the word {list(word)}, which decodes to an empty string; "
                "remove the word"
            )
        texts.add(text)
    return texts


def _check_supported(request: GenerationRequest) -> None:
    """Raise `InvalidRequest` if the request sets a logit bias or requests top log probabilities."""
    if request.logit_bias:
        raise InvalidRequest(explain_rejection("embedding_bias", "openvino"))
    if request.num_top_log_probs:
        raise InvalidRequest(
            "top_logprobs is not supported by the openvino engine kind, because OpenVINO GenAI "
            "returns only the log probability of the selected token. Omit top_logprobs."
        )


def _check_penalties(request: GenerationRequest) -> None:
    """Raise `InvalidRequest` if OpenVINO GenAI does not support the request's penalties."""
    for tensor, value, neutral in (
        ("repetition_penalty", request.repetition_penalty, 1.0),
        ("presence_penalty", request.presence_penalty, 0.0),
        ("frequency_penalty", request.frequency_penalty, 0.0),
    ):
        if value is None or value == neutral:
            continue
        if request.beam_width > 1:
            raise InvalidRequest(
                f"{tensor} is {value:g}, which is not supported with a beam_width of "
                f"{request.beam_width}. Omit {tensor}, or set beam_width to 1."
            )
        if neutral == 0.0 and not -2.0 <= value <= 2.0:
            raise InvalidRequest(f"{tensor} must be between -2 and 2, but is {value:g}")


def _check_speculative(request: GenerationRequest) -> None:
    for tensor, value in (
        ("beam_width", request.beam_width),
        ("num_return_sequences", request.num_return_sequences),
    ):
        if value > 1:
            raise InvalidRequest(
                f"{tensor} is {value}, but speculative decoding returns only one sequence. "
                f"Omit {tensor}, or serve the model with num_draft_tokens=0."
            )
    for tensor, is_set in (
        ("guided_decoding_guide_type", request.guide_type is not None),
        ("bad_words_list", bool(request.bad_words)),
    ):
        if is_set:
            raise InvalidRequest(
                f"{tensor} is not supported with speculative decoding. Omit {tensor}, or serve the "
                "model with num_draft_tokens=0."
            )
