"""Convert requests to the JSON bodies of chat completions and completions requests.

The field names follow OpenAI's API reference. `top_k`, `min_tokens`, `repetition_penalty` and
`bad_words` are vLLM extensions (vllm/entrypoints/openai/protocol.py, commit 0052bed). SGLang and
trtllm-serve support most of these extensions. A server that does not support a field rejects or
ignores it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.transport.openai.endpoint import Api
from trtllm_serve_cli.client.transport.openai.failures import ApiFailure
from trtllm_serve_cli.client.transport.tensors import Value, plan_inputs
from trtllm_serve_cli.errors import BadInput

Body = dict[str, Any]

# Maps fields of `GenerateRequest` to fields of the body.
_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "max_tokens": "max_tokens",
        "stream": "stream",
        "temperature": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
        "seed": "seed",
        "min_tokens": "min_tokens",
        "stop_words": "stop",
        "bad_words": "bad_words",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "repetition_penalty": "repetition_penalty",
        "num_return_sequences": "n",
    }
)
# Fields of `GenerateRequest` that are not copied to the body, because other fields of the body have
# the same effect, or because the API always behaves as if these fields were true.
_EXPRESSED_OTHERWISE = frozenset(
    {
        "text_input",
        "return_log_probs",
        "guided_decoding_guide_type",
        "guided_decoding_guide",
        "exclude_input_in_output",
        "return_num_input_tokens",
        "return_num_output_tokens",
    }
)
# Maps fields of `GenerateRequest` to their names in error messages. Fields that are not listed are
# options with the same name. `exclude_input_in_output` is not an option: only batch files can set
# it.
_FLAGS = {
    "exclude_input_in_output": "exclude_input_in_output",
    "return_perf_metrics": "--perf",
    "lora_weights": "--lora-dir",
    "lora_config": "--lora-dir",
    "return_context_logits": "--context-logits",
    "return_generation_logits": "--generation-logits",
}
# Maps body fields that some servers reject to their replacements, or to None if the field is
# removed. OpenAI's reasoning models reject `max_tokens`, and some servers ignore
# `max_completion_tokens` instead of rejecting it. `max_tokens` is therefore sent first.
REPLACEMENTS: Mapping[str, str | None] = MappingProxyType(
    {"max_tokens": "max_completion_tokens", "stream_options": None}
)


def plan_body(model: str, api: Api, request: GenerateRequest) -> Body:
    """Return the body for a request.

    Raise `BadInput` if a value is invalid, or if the API does not have a field for a value.
    """
    values = plan_inputs(request)
    if values.get("beam_width") == 1:
        del values["beam_width"]
    _refuse_unsupported(values)
    # vLLM serves each LoRA adapter as a model (docs/features/lora.md in vllm-project/vllm).
    body: Body = {"model": request.lora_name or model, **_plan_prompt(api, request)}
    for name, value in values.items():
        if name in _FIELDS:
            body[_FIELDS[name]] = list(value) if isinstance(value, tuple) else value
    if request.stream:
        body["stream_options"] = {"include_usage": True}
    if request.return_log_probs:
        # In completions, the field requires the number of alternative tokens, and some servers
        # ignore 0.
        body["logprobs"] = True if api == "chat" else 1
    if request.guided_decoding_guide_type is not None:
        body["response_format"] = _plan_format(
            request.guided_decoding_guide_type, request.guided_decoding_guide or ""
        )
    return body


def _plan_prompt(api: Api, request: GenerateRequest) -> Body:
    if api == "chat":
        message = {"role": "user", "content": request.text_input}
        return {"messages": [*map(dict, request.history), message]}
    if request.history:
        raise BadInput(
            "A completion request cannot contain messages.",
            why="only chat completions accept a system prompt or the previous messages of a "
            "conversation",
            next_step="pass --api chat, or send a complete prompt without --system",
        )
    return {"prompt": request.text_input}


def _refuse_unsupported(values: Mapping[str, Value]) -> None:
    unsupported = values.keys() - _FIELDS.keys() - _EXPRESSED_OTHERWISE
    if values.get("exclude_input_in_output") is False:
        unsupported |= {"exclude_input_in_output"}
    if unsupported:
        flags = {_FLAGS.get(name, "--" + name.replace("_", "-")) for name in unsupported}
        shown = " and ".join(sorted(flags))
        raise BadInput(
            f"The OpenAI API does not support {shown}.",
            why="the API does not have an equivalent field",
            next_step=f"omit {shown}, or send the request to Triton with -i grpc",
        )


def _plan_format(kind: str, guide: str) -> Body:
    match kind:
        case "json":
            return {"type": "json_object"}
        case "json_schema":
            schema = {"name": "response", "schema": _load_guide(guide), "strict": True}
            return {"type": "json_schema", "json_schema": schema}
        case "structural_tag":
            return {"type": "structural_tag"} | _load_guide(guide)
    raise BadInput(
        f"The OpenAI API does not support {kind} guides.",
        why=f"the response_format field does not support the type {kind}",
        next_step="pass --json-schema instead, or send the request to Triton with -i grpc",
    )


def _load_guide(guide: str) -> Body:
    try:
        loaded = json.loads(guide)
    except (ValueError, RecursionError):
        loaded = None
    if not isinstance(loaded, dict):
        raise BadInput(
            "The guide is not a JSON object.",
            why="the response_format field requires a JSON object",
            next_step='pass a guide such as {"type": "object"}',
        )
    return loaded


def find_rejected(
    body: Body, failure: ApiFailure, candidates: Collection[str] = REPLACEMENTS
) -> str | None:
    """Return the field of `body` that the server rejected.

    Return None if the field is unknown or is not one of `candidates`.
    """
    named = (name for name in candidates if name in body and failure.names(name))
    return next(named, None)


def replace_rejected(body: Body, rejected: Collection[str]) -> Body:
    """Return `body` with the rejected fields replaced or removed."""
    changed = {name: value for name, value in body.items() if name not in rejected}
    for name in rejected:
        if name in body and (replacement := REPLACEMENTS.get(name)) is not None:
            changed[replacement] = body[name]
    return changed
