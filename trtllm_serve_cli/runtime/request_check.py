"""Check requests and fit their token ids to the vocabulary before an engine runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from .engine import EngineLimits, GenerationRequest, InvalidRequest
from .guide import GUIDE_TYPES, find_guide_problem

# The maximum number of tokens in a word list. Compiling 4096 tokens into an automaton takes about
# one second.
MAX_WORD_TOKENS = 4096
# The maximum number of sequences per request, as for `n` in OpenAI's API.
MAX_SEQUENCES = 128
# The maximum number of alternatives per token, as in OpenAI's API.
MAX_TOP_LOG_PROBS = 20


def check_request(request: GenerationRequest, limits: EngineLimits) -> None:
    """Raise `InvalidRequest` if a value of the request is invalid or exceeds `limits`.

    Generation requests may contain input ids beyond the vocabulary, because `fit_to_vocabulary`
    replaces these ids. In embedding requests, all input ids must be in the vocabulary.
    """
    if not request.input_ids:
        raise InvalidRequest("input_ids is empty; send a prompt with at least one token")
    if (lowest := min(request.input_ids)) < 0:
        raise InvalidRequest(
            f"input_ids contains {lowest}, which is not a token id; send non-negative ids"
        )
    if limits.computes_embeddings:
        _check_embedding_request(request, limits)
        return
    _check_words("stop_words_list", request.stop_words, limits)
    _check_words("bad_words_list", request.bad_words, limits)
    if request.max_new_tokens < 1:
        raise InvalidRequest(
            f"request_output_len (max_tokens) is {request.max_new_tokens}; request at least 1 token"
        )
    room = limits.max_seq_len - len(request.input_ids)
    if room < 1:
        raise InvalidRequest(
            f"the prompt has {len(request.input_ids)} tokens, but the prompt and the response must "
            f"fit in this model's context of {limits.max_seq_len} tokens (max_seq_len); shorten "
            "the prompt"
        )
    if request.max_new_tokens > room:
        raise InvalidRequest(
            f"request_output_len (max_tokens) is {request.max_new_tokens}, but only {room} of "
            f"the {limits.max_seq_len} tokens in this model's context (max_seq_len) remain after "
            f"the prompt; request at most {room}"
        )
    _check_ranges(request, limits)
    if request.guide_type is not None:
        _check_guide(request.guide_type, request.guide)
    elif request.guide:
        raise InvalidRequest(
            "guided_decoding_guide is set, but guided_decoding_guide_type is missing; set the type "
            f"to one of {', '.join(GUIDE_TYPES)}"
        )


def _check_embedding_request(request: GenerationRequest, limits: EngineLimits) -> None:
    if request.max_new_tokens:
        raise InvalidRequest(
            "this model computes embeddings and does not generate tokens; send the request to a "
            "model that generates text"
        )
    if len(request.input_ids) > limits.max_seq_len:
        raise InvalidRequest(
            f"the input has {len(request.input_ids)} tokens, but this model accepts at most "
            f"{limits.max_seq_len} tokens (max_seq_len); shorten the input"
        )
    _check_tokens("input_ids", request.input_ids, limits)


def _check_ranges(request: GenerationRequest, limits: EngineLimits) -> None:
    _check_range("beam_width", request.beam_width, 1, limits.max_beam_width)
    _check_range("num_return_sequences", request.num_return_sequences, 1, MAX_SEQUENCES)
    _check_range("temperature", request.temperature, 0.0, 1e4)
    _check_range("runtime_top_k", request.top_k, 0, limits.vocab_size)
    _check_range("runtime_top_p", request.top_p, 0.0, 1.0)
    _check_range("seed", request.seed, 0, 2**64 - 1)
    _check_range("repetition_penalty", request.repetition_penalty, 1e-4, 1e4)
    _check_range("presence_penalty", request.presence_penalty, -1e4, 1e4)
    _check_range("frequency_penalty", request.frequency_penalty, -1e4, 1e4)
    _check_range("len_penalty (length_penalty)", request.len_penalty, -1e4, 1e4)
    _check_range("beam_search_diversity_rate", request.beam_search_diversity_rate, 0.0, 1e4)
    _check_range("min_tokens", request.min_tokens, 0, request.max_new_tokens)
    _check_range("min_p", request.min_p, 0.0, 1.0)
    _check_range("num_top_log_probs", request.num_top_log_probs, 0, MAX_TOP_LOG_PROBS)
    _check_tokens("embedding_bias", [token for token, _ in request.logit_bias], limits)
    if any(bias != bias for _, bias in request.logit_bias):
        raise InvalidRequest("embedding_bias contains NaN; replace NaN with a number")
    if request.beam_width > 1 and request.num_return_sequences > request.beam_width:
        raise InvalidRequest(
            f"num_return_sequences is {request.num_return_sequences}, but a beam search returns at "
            f"most one sequence per beam; request at most {request.beam_width} sequences "
            "(beam_width)"
        )


def _check_guide(guide_type: str, guide: str) -> None:
    if guide_type not in GUIDE_TYPES:
        raise InvalidRequest(
            f"{guide_type!r} is not a valid guided_decoding_guide_type; send one of "
            f"{', '.join(GUIDE_TYPES)}"
        )
    if problem := find_guide_problem(guide_type, guide):
        raise InvalidRequest(f"guided_decoding_guide {problem}")


def fit_to_vocabulary(request: GenerationRequest, limits: EngineLimits) -> GenerationRequest:
    """Return `request` with `input_ids` and `end_id` limited to the vocabulary.

    NVIDIA's backend accepts ids outside the vocabulary. Replace each input id with its remainder
    modulo the vocabulary size, because NVIDIA's benchmark sends random non-negative INT32 values.
    Remove an `end_id` outside the vocabulary, because some of NVIDIA's clients send 50256 to every
    model, and OpenVINO GenAI would write out of bounds if the request also set `min_tokens`.
    """
    if max(request.input_ids) >= limits.vocab_size:
        wrapped = tuple(token % limits.vocab_size for token in request.input_ids)
        request = replace(request, input_ids=wrapped)
    if request.end_id is not None and not 0 <= request.end_id < limits.vocab_size:
        request = replace(request, end_id=None)
    return request


def _check_tokens(tensor: str, token_ids: Sequence[int], limits: EngineLimits) -> None:
    low, high = min(token_ids, default=0), max(token_ids, default=0)
    if low < 0 or high >= limits.vocab_size:
        raise InvalidRequest(
            f"{tensor} contains {low if low < 0 else high}, which is not a token id of this model; "
            f"send ids from 0 to {limits.vocab_size - 1}"
        )


def _check_words(tensor: str, words: Sequence[tuple[int, ...]], limits: EngineLimits) -> None:
    token_ids = tuple(chain(*words))
    if len(token_ids) > MAX_WORD_TOKENS:
        raise InvalidRequest(
            f"{tensor} has {len(token_ids)} tokens; send at most {MAX_WORD_TOKENS} tokens"
        )
    _check_tokens(tensor, token_ids, limits)


def _check_range(tensor: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        shown, lowest, highest = map(_show, (value, low, high))
        raise InvalidRequest(f"{tensor} is {shown}; it must be between {lowest} and {highest}")


def _show(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"
