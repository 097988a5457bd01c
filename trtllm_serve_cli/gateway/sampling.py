"""Convert OpenAI sampling parameters to `GenerationRequest` fields."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from trtllm_serve_cli.gateway.errors import ApiError, invalid
from trtllm_serve_cli.gateway.generation.generation import GenerationPlan
from trtllm_serve_cli.gateway.schema.sampling import SamplingBody
from trtllm_serve_cli.gateway.served_model import LoadedModel
from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.engines.capabilities import (
    EMBEDDING_BIAS,
    GUIDED_DECODING,
    LOG_PROBABILITIES,
    LORA,
    MIN_P,
    PENALTIES,
    PROMPT_LOG_PROBABILITIES,
    SEVERAL_SEQUENCES,
    STOP_AND_BAD_WORDS,
    TOP_LOG_PROBABILITIES,
    Feature,
)
from trtllm_serve_cli.runtime.engines.kinds import find_kind, kind_names
from trtllm_serve_cli.runtime.text.text_limits import check_word_lengths

Body = TypeVar("Body", bound=SamplingBody)
# Maps request parameters to the engine features that they require. The first word of a key is the
# parameter's name; any further words are a condition.
REQUIRED_FEATURES: Mapping[str, Feature] = {
    "n": SEVERAL_SEQUENCES,
    "best_of": SEVERAL_SEQUENCES,
    "logprobs": LOG_PROBABILITIES,
    "logprobs above 0": TOP_LOG_PROBABILITIES,
    "top_logprobs": TOP_LOG_PROBABILITIES,
    "echo with logprobs": PROMPT_LOG_PROBABILITIES,
    "min_p": MIN_P,
    "repetition_penalty": PENALTIES,
    "presence_penalty": PENALTIES,
    "frequency_penalty": PENALTIES,
    "min_tokens": PENALTIES,
    "bad_words": STOP_AND_BAD_WORDS,
    "logit_bias": EMBEDDING_BIAS,
    "response_format": GUIDED_DECODING,
    "structured_outputs": GUIDED_DECODING,
    "guided_json": GUIDED_DECODING,
    "guided_regex": GUIDED_DECODING,
    "guided_grammar": GUIDED_DECODING,
    "guided_choice": GUIDED_DECODING,
    "tool_choice that forces a call": GUIDED_DECODING,
    "lora_name": LORA,
}
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")
# The JSON schema for `{"type": "json_object"}`, which allows only objects. The engines' guide type
# `json` is not suitable, because it also allows numbers, strings and arrays.
_ANY_OBJECT = {"type": "object"}
# The parameters that set a guide, except for `response_format`. A guide restricts the generated
# text, for example to a JSON schema.
_GUIDE_PARAMS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_grammar",
    "guided_choice",
)
# Maps the engine's names of inputs to the request parameters that set them, except for inputs whose
# parameters depend on the request (see `_name_inputs`).
_INPUT_PARAMS = {
    **{
        name: name
        for name in (
            *("temperature", "top_k", "top_p", "min_p", "seed", "logit_bias", "logprobs", "echo"),
            *("bad_words", "stop_token_ids", *_PENALTIES),
        )
    },
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    # The engine samples unless the temperature is 0.
    "runtime_top_k or runtime_top_p": "temperature",
    "bad_words_list": "bad_words",
    "stop_words_list": "stop_token_ids",
    "embedding_bias": "logit_bias",
    "return_log_probs": "logprobs",
    "lora_name": "model",
    "lora_task_id": "model",
    "lora_task_id or lora_name": "model",
}
# A token id as a key of `logit_bias`. The length is limited, because `int` rejects long numbers.
_TOKEN_ID = re.compile("[0-9]{1,20}")
_GUIDES = {"json": "json_schema", "regex": "regex", "grammar": "ebnf_grammar"}


def plan_generation(
    model: LoadedModel,
    body: SamplingBody,
    input_ids: list[int],
    *,
    max_tokens: int | None,
    num_sequences: int,
    returns_log_probs: bool = False,
    num_top_log_probs: int = 0,
    returns_prompt_log_probs: bool = False,
    guide: tuple[str, str] | None = None,
    skips_special_tokens: bool | None = None,
) -> GenerationPlan:
    """Return the engine request for a prompt, with the settings for decoding the generated tokens.

    If `max_tokens` is None, the response may fill the rest of the model's context. `guide` and
    `skips_special_tokens` override the values in `body`. Raise `ApiError` (400) if the prompt and
    `max_tokens` do not fit in the context, or if a parameter is invalid or not supported by the
    engine kind.
    """
    _check_stream(body)
    room = model.max_seq_len - len(input_ids)
    if room < 1 or (max_tokens or 1) > room:
        raise _too_long(model, len(input_ids), max_tokens, body.PROMPT)
    guide = guide or read_guide(body)
    fields: dict[str, Any] = {
        "input_ids": tuple(input_ids),
        "max_new_tokens": max_tokens or room,
        "end_id": None if body.ignore_eos else model.tokenizer.end_id,
        "num_return_sequences": num_sequences,
        **_plan_sampling(body),
        **{name: value for name in _PENALTIES if (value := getattr(body, name)) is not None},
        "stop_words": _stop_tokens(model, body),
        "bad_words": _encode_bad_words(model, body),
        "return_log_probs": returns_log_probs,
        "num_top_log_probs": num_top_log_probs,
        "return_prompt_log_probs": returns_prompt_log_probs,
        "logit_bias": read_bias(model, body),
    }
    if body.min_p:
        fields["min_p"] = body.min_p
    if guide is not None:
        fields |= {"guide_type": guide[0], "guide": guide[1]}
    fields |= model.adapter_fields
    _check_capabilities(model, body, fields)
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if any(not stop for stop in stops):
        raise invalid("A stop sequence cannot be empty. Remove the empty string.", "stop")
    return GenerationPlan(
        fields,
        stops=tuple(stops),
        includes_stop=body.include_stop_str_in_output,
        skips_special_tokens=body.skip_special_tokens
        if skips_special_tokens is None
        else skips_special_tokens,
        params=_name_inputs(body),
    )


def _name_inputs(body: SamplingBody) -> dict[str, str]:
    """Return the request parameters that set the engine's inputs, by the engine's names."""
    several = "n" if body.num_choices > 1 else "best_of"
    alternatives = "top_logprobs" if hasattr(body, "top_logprobs") else "logprobs"
    is_new = getattr(body, "max_completion_tokens", None) is not None
    limit = "max_completion_tokens" if is_new else "max_tokens"
    guide = _find_guide_param(body)
    return {
        **_INPUT_PARAMS,
        "input_ids": body.PROMPT,
        **dict.fromkeys(("num_return_sequences", "n"), several),
        **dict.fromkeys(("num_top_log_probs", "top_logprobs"), alternatives),
        **dict.fromkeys(("request_output_len", "max_tokens"), limit),
        "guided_decoding_guide": guide or "tools",
        "guided_decoding_guide_type": guide or "tool_choice",
    }


def apply_defaults(model: LoadedModel, body: Body) -> Body:
    """Return a copy of the request that uses the model's defaults for unset sampling parameters.

    Omit defaults that the engine kind does not support, because the client did not request them.
    """
    values = msgspec.structs.asdict(model.sampling_defaults)
    missing = {
        name: value
        for name, value in values.items()
        if value is not None and getattr(body, name) is None and find_obstacle(model, name) is None
    }
    return msgspec.structs.replace(body, **missing) if missing else body


def _check_stream(body: SamplingBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise invalid(
            "`stream_options` is only allowed when `stream` is true. Set `stream` to true, or omit "
            "`stream_options`.",
            "stream_options",
        )


def _too_long(model: LoadedModel, num_tokens: int, max_tokens: int | None, param: str) -> ApiError:
    requested = f", and {max_tokens} output tokens are requested" if max_tokens else ""
    return invalid(
        f"This model's maximum context length is {model.max_seq_len} tokens. However, the prompt "
        f"has {num_tokens} tokens{requested}. Reduce the length of the prompt or the output.",
        param,
        "context_length_exceeded",
    )


def _plan_sampling(body: SamplingBody) -> dict[str, Any]:
    """Return the sampling fields. The defaults are OpenAI's: temperature 1 and top_p 1.

    Temperature 0 selects greedy decoding. If no seed is set, use a random one, because TensorRT-LLM
    would otherwise always generate the same text for a prompt.
    """
    if body.temperature == 0:
        return {"top_k": 1}
    fields: dict[str, Any] = {
        "temperature": 1.0 if body.temperature is None else body.temperature,
        # Engines treat a top_p of 0 as "not set". A value this small selects the most likely token,
        # as 0 does in OpenAI's API.
        "top_p": max(1.0 if body.top_p is None else body.top_p, 1e-6),
        "seed": random.getrandbits(63) if body.seed is None else body.seed % 2**63,
    }
    if body.top_k is not None and body.top_k > 0:
        fields["top_k"] = body.top_k
    return fields


def _stop_tokens(model: LoadedModel, body: SamplingBody) -> tuple[tuple[int, ...], ...]:
    """Return the token ids that end a response, each as a word of one token."""
    model.check_token_ids(body.stop_token_ids or (), "stop_token_ids")
    ends = () if body.ignore_eos else model.extra_end_ids
    return tuple((token,) for token in (*ends, *(body.stop_token_ids or ())))


def _encode_bad_words(model: LoadedModel, body: SamplingBody) -> tuple[tuple[int, ...], ...]:
    words = [word for word in body.bad_words or () if word]
    try:
        check_word_lengths("bad_words", [words])
    except InvalidRequest as error:
        raise invalid(f"{error}.", "bad_words") from error
    encode = model.tokenizer.encode
    return tuple(tuple(encode(word, add_special_tokens=False)) for word in words)


def read_guide(body: SamplingBody) -> tuple[str, str] | None:
    """Return the type and text of the request's guide, or None if the request does not set one.

    Raise `ApiError` (400) if the request sets several guides, or if a guide is incomplete or not
    supported.
    """
    guides = [*_list_guides(body)]
    if len(guides) > 1:
        raise invalid(
            "The request sets several output constraints (`response_format`, `structured_outputs` "
            "or `guided_*`). Set only one constraint."
        )
    return guides[0] if guides else None


def _find_guide_param(body: SamplingBody) -> str | None:
    """Return the name of the parameter that sets the request's guide.

    Return None if there is no such parameter. In this case, a tool choice sets the guide.
    """
    names = (name for name in (*_GUIDE_PARAMS, "response_format") if getattr(body, name))
    return next(names, None)


def _list_guides(body: SamplingBody) -> list[tuple[str, str]]:
    guides = []
    if (format_ := body.response_format) is not None:
        if format_.type == "json_object":
            guides.append(("json_schema", json.dumps(format_.schema or _ANY_OBJECT)))
        elif format_.type == "json_schema":
            if format_.json_schema is None:
                raise invalid(
                    "`response_format.json_schema` is required when `response_format.type` is "
                    "'json_schema'.",
                    "response_format",
                )
            guides.append(("json_schema", json.dumps(format_.json_schema.schema)))
    options: Mapping[str, Any] = {
        "json": body.guided_json,
        "regex": body.guided_regex,
        "grammar": body.guided_grammar,
        "choice": body.guided_choice,
        **(body.structured_outputs or {}),
    }
    for key, value in options.items():
        if value is None or value is False:
            continue
        if key == "choice":
            guides.append(("regex", _match_choices(value)))
        elif key == "json_object":
            guides.append(("json_schema", json.dumps(_ANY_OBJECT)))
        elif key in _GUIDES:
            text = value if isinstance(value, str) else json.dumps(value)
            guides.append((_GUIDES[key], text))
        else:
            raise invalid(
                f"`structured_outputs.{key}` is not supported. Use `json`, `regex`, `grammar`, "
                "`choice` or `json_object`.",
                "structured_outputs",
            )
    return guides


def _match_choices(choices: Any) -> str:
    """Return a regular expression that matches each of the `choices`.

    Raise `ApiError` (400) if `choices` is not a list of strings, or is empty.
    """
    is_list = isinstance(choices, list) and all(isinstance(each, str) for each in choices)
    if not is_list or not choices:
        raise invalid(
            "`structured_outputs.choice` must be a list of at least one string.",
            "structured_outputs",
        )
    return "|".join(map(re.escape, choices))


def read_bias(model: LoadedModel, body: SamplingBody) -> tuple[tuple[int, float], ...]:
    """Return a (token id, bias) pair for each nonzero bias.

    Raise `ApiError` (400) if a key of `logit_bias` is not a token id of the model.
    """
    if not body.logit_bias:
        return ()
    vocab_size = model.info.vocab_size or model.tokenizer.vocab_size
    bias = []
    for key, value in body.logit_bias.items():
        token = int(key) if _TOKEN_ID.fullmatch(key) else -1
        if not 0 <= token < vocab_size:
            raise invalid(
                f"The key {key[:40]!r} of `logit_bias` is not a token id of this model. Use token "
                f"ids from 0 to {vocab_size - 1}.",
                "logit_bias",
            )
        if value:
            bias.append((token, value))
    return tuple(bias)


def _check_capabilities(model: LoadedModel, body: SamplingBody, fields: Mapping[str, Any]) -> None:
    """Raise `ApiError` (400) if the engine kind does not support a parameter of the request."""
    for name in _list_used(body, fields):
        require_feature(model, name)


def _list_used(body: SamplingBody, fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of `REQUIRED_FEATURES` that apply to a request's sampling parameters."""
    if fields["num_return_sequences"] > 1:
        yield "n" if body.num_choices > 1 else "best_of"
    if fields["return_log_probs"]:
        yield "logprobs"
    if fields["return_prompt_log_probs"]:
        # Do not check "logprobs above 0". Every engine kind that returns the log probabilities of
        # prompt tokens also returns the alternatives to these tokens, even if it does not return
        # alternatives to generated tokens.
        yield "echo with logprobs"
    elif fields["num_top_log_probs"]:
        yield "top_logprobs" if hasattr(body, "top_logprobs") else "logprobs above 0"
    if "guide_type" in fields:
        yield next((name for name in _GUIDE_PARAMS if getattr(body, name)), "response_format")
    yield from (name for name in ("min_p", *_PENALTIES) if name in fields)
    yield from (name for name in ("bad_words", "logit_bias") if fields[name])


def require_feature(model: LoadedModel, name: str) -> None:
    """Raise `ApiError` (400) if the model's engine kind does not support a parameter.

    `name` is a key of `REQUIRED_FEATURES`.
    """
    if (why := find_obstacle(model, name)) is not None:
        raise invalid(
            f"{name} is not supported by the {model.engine_kind} engine kind, because {why}. Omit "
            "it.",
            name.split()[0],
            "unsupported_parameter",
        )


def find_obstacle(model: LoadedModel, name: str) -> str | None:
    """Return why the engine kind does not support a parameter, or None if it is supported.

    Also return None if the engine kind is unknown, or if `name` is not in `REQUIRED_FEATURES`.
    """
    kind = model.engine_kind
    feature = REQUIRED_FEATURES.get(name)
    if feature is None or kind not in kind_names():
        return None
    return find_kind(kind).capabilities.unsupported.get(feature)
