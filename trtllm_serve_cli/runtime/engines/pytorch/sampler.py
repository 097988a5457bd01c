"""Choose TensorRT-LLM's sampler and find the request fields that the sampler ignores.

Sources: tensorrt_llm/llmapi/llm_args.py in NVIDIA/TensorRT-LLM, and the pull requests #16052 (bad
words), #16485 (penalties), #16620 (beam search options), #17701 (`enable_penalty`), #6464 (bias),
#7756 (log probabilities of alternatives) and #7580 (prompt log probabilities). The version numbers
were derived from the dates of these pull requests. For min-p, the version is the first one that
documents min-p (docs/source/features/sampling.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..engine_arguments import Arguments
from ..sampling_arguments import PENALTIES
from .installed import (
    OLD_SAMPLER,
    AdaptedArguments,
    accepted_fields,
    decoding_tag,
    samples_always,
)

_Release = tuple[int, int, int, float]
# Maps request fields to the first version whose TorchSampler applies them. Earlier versions accept
# the fields but ignore them.
_TORCH_SAMPLER_SINCE: Mapping[str, _Release] = {
    "logit_bias": (1, 1, 0, 1),
    "num_top_log_probs": (1, 2, 0, 1),
    "min_p": (1, 3, 0, 24),
    "bad_words": (1, 3, 0, 25),
    **dict.fromkeys(PENALTIES, (1, 3, 0, 25)),
    **dict.fromkeys(("len_penalty", "early_stopping", "beam_search_diversity_rate"), (1, 3, 0, 26)),
}
# The first version that returns prompt log probabilities, with TorchSampler or TRTLLMSampler.
_PROMPT_LOG_PROBS_SINCE: _Release = (1, 2, 0, 1)
# The first version in which no request field requires TRTLLMSampler.
_ONE_SAMPLER: _Release = max(_TORCH_SAMPLER_SINCE.values())
# Speculative decoding types whose draft tokens come from a second engine or from no model. These
# types support sampling in all versions, unless the class runs both models in one engine.
_TWO_ENGINES = ("ngram", "draft_target", "user_provided", "auto")
# Maps each type that runs both models in one engine by default to an argument. If the argument is
# false, the draft model has its own engine, and the type supports sampling in all versions.
_ONE_ENGINE = {
    "eagle": "eagle3_one_model", "eagle3": "eagle3_one_model", "mtp": "mtp_eagle_one_model"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """The limits of the loaded model's sampler.

    These fields are empty for models with speculative decoding:

    - `name`: the sampler's name in error messages.
    - `ignored`: the request fields that the sampler ignores.

    These fields apply only to models with speculative decoding:

    - `can_sample`: true if the model supports sampling in addition to greedy decoding.
    - `has_penalties`: true if the model applies penalties.
    - `can_enable_penalties`: true if the `enable_penalty` argument would enable penalties.
    """

    name: str = ""
    ignored: frozenset[str] = frozenset()
    can_sample: bool = False
    has_penalties: bool = False
    can_enable_penalties: bool = False


def choose_sampler(arguments: Arguments, fields: Mapping[str, Any], version: str) -> Arguments:
    """Return the argument that selects TRTLLMSampler, or an empty mapping if it is not needed.

    A model needs TRTLLMSampler if TorchSampler in `version` ignores any of the request fields in
    `_TORCH_SAMPLER_SINCE`. `fields` contains the fields of the installed `TorchLlmArgs`. Also
    return an empty mapping in these cases:

    - `arguments` already selects a sampler.
    - `arguments` enables speculative decoding, which TRTLLMSampler does not support.
    - `fields` contains no sampler argument.
    """
    is_chosen = "sampler_type" in arguments or "enable_trtllm_sampler" in arguments
    if is_chosen or arguments.get("speculative_config") or _release(version) >= _ONE_SAMPLER:
        return {}
    if "sampler_type" in fields:
        return {"sampler_type": OLD_SAMPLER}
    return {"enable_trtllm_sampler": True} if "enable_trtllm_sampler" in fields else {}


def find_limits(adapted: AdaptedArguments, version: str) -> SamplerLimits:
    """Return the limits of the sampler that the model was loaded with."""
    if adapted.decoding is not None:
        cls, options = adapted.decoding
        # Penalties cannot be combined with draft trees.
        is_tree = bool(options.get("eagle_choices") or options.get("use_dynamic_tree"))
        has_switch = "enable_penalty" in accepted_fields(cls) and not is_tree
        return SamplerLimits(
            can_sample=_can_sample(cls, options),
            has_penalties=has_switch and bool(options.get("enable_penalty")),
            can_enable_penalties=has_switch,
        )
    values, release = adapted.values, _release(version)
    ignored = {"return_prompt_log_probs"} if release < _PROMPT_LOG_PROBS_SINCE else set()
    if values.get("sampler_type") == OLD_SAMPLER or values.get("enable_trtllm_sampler"):
        ignored.add("num_top_log_probs")
        return SamplerLimits(f"the TRTLLMSampler of TensorRT-LLM {version}", frozenset(ignored))
    ignored |= {name for name, since in _TORCH_SAMPLER_SINCE.items() if release < since}
    return SamplerLimits(f"the TorchSampler of TensorRT-LLM {version}", frozenset(ignored))


def _can_sample(cls: type, options: Mapping[str, Any]) -> bool:
    """Return whether a model with this speculative decoding class supports sampling."""
    if samples_always(cls) or options.get("allow_advanced_sampling"):
        return True
    tag = decoding_tag(cls).lower()
    if options.get(_ONE_ENGINE.get(tag, "")) is False:
        return True
    has_one_engine = "_draft_target_one_model" in getattr(cls, "__private_attributes__", {})
    return tag in _TWO_ENGINES and not has_one_engine


def _release(version: str) -> _Release:
    """Return a version as a comparable tuple: major, minor, patch and release candidate.

    A release sorts after its release candidates. Release candidates sort after other pre-releases.
    A version in an unknown format sorts after all other versions.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(rc|dev|a|b)(\d*))?", version)
    if match is None:
        return (10**6, 0, 0, 0)
    major, minor, patch, stage, number = match.groups()
    rank = math.inf if stage is None else float(number or 0) if stage == "rc" else -1.0
    return (int(major), int(minor), int(patch or 0), rank)
