"""Encode requests and decode responses for the OpenAI API, without I/O.

Servers differ in the fields that they accept. Before the run, `openai_probe` determines the
accepted fields and stores their names as the `inputs` of a `ServedModel`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport.codec import RequestOptions, Response
from trtllm_serve_cli.bench.workloads.spec import RequestSpec
from trtllm_serve_cli.client.transport.openai.endpoint import Api
from trtllm_serve_cli.client.transport.openai.failures import find_error
from trtllm_serve_cli.client.transport.openai.response_pieces import DONE, read_text, read_usage

_DONE = DONE.encode()
# vLLM, SGLang and trtllm-serve accept `ignore_eos` and `min_tokens`. If `min_tokens` equals the
# maximum number of tokens, it has the same effect as `ignore_eos`, but is more expensive for the
# server, which has to mask tokens in each step. Only vLLM (vllm/entrypoints/openai/protocol.py,
# since 0.10.2) and tllm's gateway accept `return_token_ids`.
EXTENSIONS = frozenset({"ignore_eos", "min_tokens", "return_token_ids"})
# Fields that a request can omit or replace if the server rejects them.
OPTIONAL = frozenset({"max_tokens", "stream_options", "temperature"}) | EXTENSIONS


def find_api(model: ServedModel) -> Api:
    """Return the API to use, based on the model's inputs."""
    return "chat" if "messages" in model.inputs else "completions"


def encode_body(spec: RequestSpec, model: ServedModel, options: RequestOptions) -> bytes:
    """Encode `spec` as the JSON body of a chat completions or completions request."""
    return json.dumps(plan_body(spec, model, options)).encode()


def plan_body(spec: RequestSpec, model: ServedModel, options: RequestOptions) -> dict[str, Any]:
    """Return the request body for `spec`, without optional fields that the server rejects.

    Sampling is greedy if the server accepts `temperature`.
    """
    body: dict[str, Any] = {"model": model.name}
    if find_api(model) == "chat":
        body["messages"] = [{"role": "user", "content": spec.text}]
    else:
        body["prompt"] = spec.input_ids.tolist() if spec.text is None else spec.text
    has_exact_length = spec.end_id is None if spec.text is None else spec.ignores_eos
    limit = "max_tokens" if "max_tokens" in model.inputs else "max_completion_tokens"
    optional = {
        "temperature": 0,
        "ignore_eos": has_exact_length or None,
        "stream_options": {"include_usage": True} if options.stream else None,
        "return_token_ids": options.needs_ids or None,
    }
    if has_exact_length and "ignore_eos" not in model.inputs:
        optional["min_tokens"] = spec.num_output_tokens
    body |= {
        name: value
        for name, value in optional.items()
        if value is not None and name in model.inputs
    }
    return body | {limit: spec.num_output_tokens, "stream": options.stream}


def decode_part(data: bytes) -> Response:
    """Decode the data of one event, or a whole response. Empty data marks the end of the stream."""
    if not data or data == _DONE:
        return Response(0, is_final=not data)
    try:
        body = json.loads(data)
        if (error := find_error(body)) is not None:
            return Response(0, True, error[0])
        return _count(body)
    except (AttributeError, KeyError, TypeError, ValueError):
        return Response(0, True, f"the response is not valid: {data[:80]!r}")


def _count(body: dict[str, Any]) -> Response:
    """Count the tokens in a part.

    Without token ids, a part with text counts as one token until the server reports the number of
    tokens in the whole response.
    """
    choices = body.get("choices") or ()
    text = "".join("".join(read_text(choice)) for choice in choices)
    ids = [each for choice in choices for each in choice.get("token_ids") or ()]
    num_input_tokens, total_tokens = read_usage(body.get("usage") or {})
    return Response(
        num_tokens=len(ids) or int(bool(text)),
        is_final=False,
        ids=np.array(ids, np.int32).tobytes() if ids else b"",
        text=text,
        is_counted=bool(ids) or not text,
        num_input_tokens=num_input_tokens,
        total_tokens=total_tokens,
    )
