"""Choose TensorRT-LLM's sampler, and find the request fields that the sampler ignores.

Sources: tensorrt_llm/llmapi/llm_args.py in NVIDIA/TensorRT-LLM, and the pull requests #16052 (bad
words), #16485 (penalties), #16620 (options of beam search) and #17701 (`enable_penalty`). The
version numbers follow from the dates of these pull requests.
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
# The first versions whose TorchSampler applies these request fields. Earlier versions accept the
# fields and ignore them.
_TORCH_SAMPLER_SINCE: Mapping[str, _Release] = {
    "bad_words": (1, 3, 0, 25),
    **dict.fromkeys(PENALTIES, (1, 3, 0, 25)),
    **dict.fromkeys(("len_penalty", "early_stopping", "beam_search_diversity_rate"), (1, 3, 0, 26)),
}
# From this version on, no feature requires the old sampler.
_ONE_SAMPLER: _Release = max(_TORCH_SAMPLER_SINCE.values())
# The types of speculative decoding whose drafts come from a second engine or from no model. Their
# requests can always sample. Each of the listed arguments selects a second engine if it is false.
_TWO_ENGINES = ("ngram", "draft_target", "user_provided", "auto")
_ONE_ENGINE = {
    "eagle": "eagle3_one_model", "eagle3": "eagle3_one_model", "mtp": "mtp_eagle_one_model"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """The fields of requests that the loaded model's sampler ignores.

    `name` describes the sampler in errors. All other fields concern speculative decoding: whether
    the model can sample tokens instead of greedy decoding, whether it applies penalties, and
    whether the argument `enable_penalty` would make it apply them.
    """

    name: str = ""
    ignored: frozenset[str] = frozenset()
    can_sample: bool = False
    has_penalties: bool = False
    can_enable_penalties: bool = False


def choose_sampler(arguments: Arguments, fields: Mapping[str, Any], version: str) -> Arguments:
    """Return the argument for the old sampler if the model needs it and `arguments` has none.

    The new sampler of this version would ignore penalties and bad words. The old sampler does not
    support speculative decoding.
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
        # Draft trees exclude penalties.
        is_tree = bool(options.get("eagle_choices") or options.get("use_dynamic_tree"))
        has_switch = "enable_penalty" in accepted_fields(cls) and not is_tree
        return SamplerLimits(
            can_sample=_can_sample(cls, options),
            has_penalties=has_switch and bool(options.get("enable_penalty")),
            can_enable_penalties=has_switch,
        )
    values = adapted.values
    if values.get("sampler_type") == OLD_SAMPLER or values.get("enable_trtllm_sampler"):
        return SamplerLimits()
    release = _release(version)
    ignored = (name for name, since in _TORCH_SAMPLER_SINCE.items() if release < since)
    return SamplerLimits(f"the TorchSampler of TensorRT-LLM {version}", frozenset(ignored))


def _can_sample(cls: type, options: Mapping[str, Any]) -> bool:
    """Return whether speculative decoding with this class can sample tokens."""
    if samples_always(cls) or options.get("allow_advanced_sampling"):
        return True
    tag = decoding_tag(cls).lower()
    if options.get(_ONE_ENGINE.get(tag, "")) is False:
        return True
    has_one_engine = "_draft_target_one_model" in getattr(cls, "__private_attributes__", {})
    return tag in _TWO_ENGINES and not has_one_engine


def _release(version: str) -> _Release:
    """Return a version in a form that can be compared. Release candidates precede their release."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(rc|dev|a|b)(\d*))?", version)
    if match is None:
        return (10**6, 0, 0, 0)
    major, minor, patch, stage, number = match.groups()
    rank = math.inf if stage is None else float(number or 0) if stage == "rc" else -1.0
    return (int(major), int(minor), int(patch or 0), rank)
