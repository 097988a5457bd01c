"""Parse the JSON sampling parameters of the vllm layout.

Names and defaults match `SamplingParams` in vllm/sampling_params.py in vllm-project/vllm (0.26). As
in Triton's vLLM backend, numbers and flags may be strings. Source of the additional names:
src/utils/vllm_backend_utils.py in triton-inference-server/vllm_backend@8de0c14.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..engine import InvalidRequest

# vLLM's defaults for parameters that the client does not send.
_DEFAULTS = {"max_new_tokens": 16, "temperature": 1.0, "top_p": 1.0, "num_return_sequences": 1}
_SCALARS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "n": ("num_return_sequences", int),
    "max_tokens": ("max_new_tokens", int),
    "min_tokens": ("min_tokens", int),
    "temperature": ("temperature", float),
    "top_p": ("top_p", float),
    # In vLLM, both -1 and 0 disable top-k sampling. In `GenerationRequest`, only 0 does.
    "top_k": ("top_k", lambda value: max(0, int(value))),
    "seed": ("seed", int),
    "repetition_penalty": ("repetition_penalty", float),
    "presence_penalty": ("presence_penalty", float),
    "frequency_penalty": ("frequency_penalty", float),
    "min_p": ("min_p", float),
    # JSON keys are strings, so convert them to token ids, as vLLM's own server does.
    "logit_bias": (
        "logit_bias",
        lambda bias: tuple((int(token), float(value)) for token, value in bias.items()),
    ),
}
# The names of the guide parameter in newer and older versions of vLLM.
_GUIDES = ("structured_outputs", "guided_decoding")
# Maps each key of vLLM's guide to the guide type and a function that returns the guide's text.
_GUIDE_TYPES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "json": ("json_schema", lambda guide: guide if isinstance(guide, str) else json.dumps(guide)),
    "json_object": ("json", lambda guide: ""),
    "regex": ("regex", str),
    "grammar": ("ebnf_grammar", str),
    "structural_tag": ("structural_tag", str),
}
# Maps vLLM parameters that are not supported to vLLM's default values. Requests that set a
# parameter to its default are accepted.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "detokenize": (True, "true"),
    "spaces_between_special_tokens": (True, "true"),
}
# Triton and its clients add parameters with these prefixes to requests.
_OF_TRITON = ("triton_", "binary_data")


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """The sampling parameters of a request.

    - `fields`: the fields of the `GenerationRequest` that the parameters set.
    - `stops`, `bad_words`: the words as text.
    - `keeps_stop_word`: true if a response contains the stop word that ended it.
    """

    fields: dict[str, Any]
    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    ignores_end: bool = False
    keeps_stop_word: bool = False
    skips_special_tokens: bool = True
    has_log_probs: bool = False


def parse_sampling_parameters(text: str) -> SamplingParameters:
    """Parse the JSON object `text`.

    Raise `InvalidRequest` if the JSON or a value is invalid, or if a parameter is not supported.
    """
    values = {
        name: value
        for name, value in _parse_object(text).items()
        if (value is not None or name == "max_tokens") and not name.startswith(_OF_TRITON)
    }
    fields: dict[str, Any] = dict(_DEFAULTS)
    if "max_tokens" in values and values["max_tokens"] is None:
        del fields["max_new_tokens"], values["max_tokens"]
    for name, (field, convert) in _SCALARS.items():
        if name in values:
            fields[field] = _convert(name, values.pop(name), convert)
    if "lora_name" in values:
        fields["lora_name"] = _convert("lora_name", values.pop("lora_name"), _as_word)
    for name in _GUIDES:
        if name in values:
            fields |= _parse_guide(name, values.pop(name))
    parsed = SamplingParameters(
        fields=fields,
        stops=_pop(values, "stop", _as_words, ()),
        stop_token_ids=_pop(values, "stop_token_ids", _as_ids, ()),
        bad_words=_pop(values, "bad_words", _as_words, ()),
        ignores_end=_pop(values, "ignore_eos", _as_flag, False),
        keeps_stop_word=_pop(values, "include_stop_str_in_output", _as_flag, False),
        skips_special_tokens=_pop(values, "skip_special_tokens", _as_flag, True),
        has_log_probs=_pop(values, "logprobs", int, None) is not None,
    )
    for name, value in values.items():
        if value not in _WITHOUT_EFFECT.get(name, ()):
            raise InvalidRequest(
                f"sampling_parameters contains {name}, which is not supported; omit {name}"
            )
    return parsed


def _parse_object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"sampling_parameters is not valid JSON ({error}); send a JSON object"
        ) from error
    if not isinstance(values, dict):
        raise InvalidRequest("sampling_parameters is not a JSON object; send an object")
    return values


def _pop(values: dict[str, Any], name: str, convert: Callable[[Any], Any], default: Any) -> Any:
    return _convert(name, values.pop(name), convert) if name in values else default


def _convert(name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(value)
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(
            f"{value!r} is not a valid value for {name} in sampling_parameters; send a value that "
            f"vLLM accepts for {name}"
        ) from error


def _parse_guide(name: str, value: Any) -> dict[str, str]:
    """Return the fields of the `GenerationRequest` for guided decoding.

    The guide `value` is an object or its JSON text. Raise `InvalidRequest` if it is not an object
    that sets exactly one known key.
    """
    guide = _convert(name, value, lambda each: json.loads(each) if isinstance(each, str) else each)
    used = [key for key in guide if guide[key]] if isinstance(guide, dict) else []
    if len(used) != 1 or used[0] not in _GUIDE_TYPES:
        raise InvalidRequest(
            f"{name} in sampling_parameters is {value!r}, which is not a valid guide; set exactly "
            f"one of the keys {', '.join(_GUIDE_TYPES)}"
        )
    guide_type, as_text = _GUIDE_TYPES[used[0]]
    return {"guide_type": guide_type, "guide": as_text(guide[used[0]])}


def _as_word(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


def _as_words(value: Any) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list):
        raise TypeError(value)
    return tuple(_as_word(word) for word in words)


def _as_ids(value: Any) -> tuple[int, ...]:
    return tuple(int(token) for token in value)


def _as_flag(value: Any) -> bool:
    return value.lower() in ("true", "1") if isinstance(value, str) else bool(value)
