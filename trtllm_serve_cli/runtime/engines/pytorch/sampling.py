"""Convert a generation request to sampling arguments for TensorRT-LLM's LLM API.

This module does not import `tensorrt_llm`. The names and limits are from
tensorrt_llm/sampling_params.py and the PyTorch backend's executor in NVIDIA/TensorRT-LLM (1.0 to
1.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine import GenerationRequest, InvalidRequest
from ..sampling_arguments import PENALTIES, copy_set_fields, random_sampling, single_tokens
from .sampler import SamplerLimits

# The end id for requests without an end token. With None, the executor would use the tokenizer's
# end token.
_NO_END = -1
# Maps request fields to their tensor or API field names in error messages, if the names differ.
_TENSORS = {
    "bad_words": "bad_words_list",
    "logit_bias": "embedding_bias",
    "num_top_log_probs": "top_logprobs",
    "return_prompt_log_probs": "echo with logprobs",
}
# Maps request fields that a sampler ignores to the version and arguments that support them. Other
# ignored fields require `_OLD_SAMPLER_REMEDY`.
_REMEDIES = {
    "num_top_log_probs": (
        'TensorRT-LLM 1.2 or later and llm_args={"sampler_type": "TorchSampler"}'
    ),
    "return_prompt_log_probs": "TensorRT-LLM 1.2 or later",
}
_OLD_SAMPLER_REMEDY = 'llm_args={"sampler_type": "TRTLLMSampler"}'
# The sampling that is not greedy decoding, and the tensors that select it.
_RANDOM = "random sampling (runtime_top_k or runtime_top_p)"
# Maps request fields to their neutral value, if it is not zero.
_NEUTRAL = {"repetition_penalty": 1.0}


def sampling_arguments(request: GenerationRequest) -> dict[str, Any]:
    """Return the arguments for `SamplingParams`.

    Omit the guide, the logit bias and multi-token bad words, which `_sampling_params` (engine.py)
    adds. Omit multi-token stop words, which `ResultReader` detects, because the API accepts them
    only as text. Except for top_k and top_p (see `random_sampling`), also omit unset optional
    fields.
    """
    is_beam_search = request.beam_width > 1
    arguments: dict[str, Any] = {
        "max_tokens": request.max_new_tokens,
        "end_id": _NO_END if request.end_id is None else request.end_id,
        "pad_id": request.end_id or 0,
        "n": request.num_return_sequences,
        "best_of": request.beam_width if is_beam_search else request.num_return_sequences,
        "detokenize": False,
        "include_stop_str_in_output": True,
        **(_beam_search(request) if is_beam_search else _sampling(request)),
        **copy_set_fields(request, *PENALTIES, "min_tokens", "min_p", "seed"),
    }
    if stops := single_tokens(request.stop_words):
        arguments["stop_token_ids"] = stops
    if bad := single_tokens(request.bad_words):
        arguments["bad_token_ids"] = bad
    if request.return_log_probs or request.num_top_log_probs:
        arguments["logprobs"] = max(request.num_top_log_probs, 1)
    if request.return_prompt_log_probs:
        arguments["prompt_logprobs"] = max(request.num_top_log_probs, 1)
    if request.return_perf_metrics:
        arguments["return_perf_metrics"] = True
    return arguments


def long_bad_words(request: GenerationRequest) -> list[list[int]]:
    """Return the multi-token bad words."""
    return [list(word) for word in request.bad_words if len(word) > 1]


def check_servable(
    request: GenerationRequest, arguments: Mapping[str, Any], sampler: SamplerLimits
) -> None:
    """Raise `InvalidRequest` if a model loaded with `arguments` cannot run the request.

    `sampler` contains the limits of the model's sampler. Without this check, the LLM API would
    accept many unsupported fields but ignore them.
    """
    _check_sampler(request, sampler)
    max_beam_width = int(arguments.get("max_beam_width") or 1)
    if request.beam_width != max_beam_width:
        raise InvalidRequest(
            f"beam_width is {request.beam_width}, but with TensorRT-LLM's PyTorch backend, it must "
            f"equal the model's max_beam_width. Set beam_width to {max_beam_width}, or serve the "
            f"model with max_beam_width={request.beam_width}."
        )
    if request.beam_width > 1 and any(len(word) > 1 for word in request.stop_words):
        raise InvalidRequest(
            "stop_words_list contains a multi-token stop word, which is not supported with a "
            f"beam_width of {request.beam_width}. Omit the word, or send a single-token stop word."
        )
    if request.guide_type is not None and not arguments.get("guided_decoding_backend"):
        raise InvalidRequest(
            "guided_decoding_guide_type is not supported, because this model is served without "
            "guided decoding. Omit guided_decoding_guide_type, or serve the model with "
            "guided_decoding_backend=xgrammar."
        )
    max_num_tokens = arguments.get("max_num_tokens")
    if (
        max_num_tokens
        and len(request.input_ids) > max_num_tokens
        and not arguments.get("enable_chunked_prefill")
    ):
        raise InvalidRequest(
            f"The prompt has {len(request.input_ids)} tokens, but a step can process at most "
            f"{max_num_tokens} tokens (max_num_tokens). Shorten the prompt, or serve the model "
            "with enable_chunked_context=true."
        )
    if speculative := arguments.get("speculative_config"):
        _check_speculative(request, str(speculative.get("decoding_type")), sampler)


def _check_sampler(request: GenerationRequest, sampler: SamplerLimits) -> None:
    """Raise `InvalidRequest` if the request sets a field that the sampler ignores."""
    for name in sorted(sampler.ignored):
        value = getattr(request, name)
        if value and value != _NEUTRAL.get(name):
            shown = _TENSORS.get(name, name)
            raise InvalidRequest(
                f"{shown} is not supported by {sampler.name}. Omit {shown}, or serve the model "
                f"with {_REMEDIES.get(name, _OLD_SAMPLER_REMEDY)}."
            )


def _check_speculative(
    request: GenerationRequest, decoding_type: str, sampler: SamplerLimits
) -> None:
    requested = {
        "num_return_sequences": request.num_return_sequences > 1,
        "return_log_probs": request.return_log_probs,
        "bad_words_list": bool(request.bad_words),
        "min_tokens": bool(request.min_tokens),
        **{
            _TENSORS.get(name, name): bool(getattr(request, name))
            for name in ("min_p", "logit_bias", "num_top_log_probs", "return_prompt_log_probs")
        },
        _RANDOM: not (sampler.can_sample or request.is_greedy),
    }
    penalties = {name: getattr(request, name) is not None for name in PENALTIES}
    advice = "serve the model without speculative decoding"
    if sampler.can_enable_penalties and not any(requested.values()):
        advice = 'serve the model with llm_args={"speculative_config": {"enable_penalty": true}}'
    if not sampler.has_penalties:
        requested |= penalties
    for tensor, is_set in requested.items():
        if is_set:
            fix = "Use greedy decoding" if tensor == _RANDOM else f"Omit {tensor}"
            raise InvalidRequest(
                f"{tensor} is not supported with speculative decoding ({decoding_type}). {fix}, or "
                f"{advice}."
            )


def _sampling(request: GenerationRequest) -> dict[str, Any]:
    return {"top_k": 1} if request.is_greedy else random_sampling(request)


def _beam_search(request: GenerationRequest) -> dict[str, Any]:
    requested = {
        "length_penalty": request.len_penalty,
        "early_stopping": None if request.early_stopping is None else int(request.early_stopping),
        "beam_search_diversity_rate": request.beam_search_diversity_rate,
    }
    return {"use_beam_search": True, **{k: v for k, v in requested.items() if v is not None}}
