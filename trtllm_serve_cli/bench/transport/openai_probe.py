"""Determine which fields an OpenAI-compatible server accepts, by requesting one token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trtllm_serve_cli.bench.model.served_model import InputKind, OpenAITarget, ServedModel
from trtllm_serve_cli.bench.transport.codec import RequestOptions
from trtllm_serve_cli.bench.transport.openai_codec import EXTENSIONS, OPTIONAL, plan_body
from trtllm_serve_cli.bench.workloads.spec import RequestSpec
from trtllm_serve_cli.client.transport.openai import failures
from trtllm_serve_cli.client.transport.openai.exchange import Rejected, send_once
from trtllm_serve_cli.client.transport.openai.failures import ApiFailure
from trtllm_serve_cli.client.transport.openai.request_body import find_rejected
from trtllm_serve_cli.client.transport.openai.served_models import fetch_version
from trtllm_serve_cli.errors import RequestFailed, TllmError

_PROBE = RequestSpec.of_text("Hello", 1, ignores_eos=True)
_PROBE_IDS = RequestSpec(np.array([1, 2, 3], np.int32), 1)


def probe_model(
    target: OpenAITarget, input_kind: InputKind, options: RequestOptions
) -> ServedModel:
    """Return the target's model. Its `inputs` are the request fields that the server accepts.

    Raise `NoServer` if the server cannot be reached, or `RequestFailed` if the server cannot
    process the workload's requests.
    """
    spec = _PROBE if input_kind == "text" else _PROBE_IDS
    prompt = "messages" if target.api == "chat" else "prompt"
    model = ServedModel(
        address=str(target.endpoint.url),
        name=target.model,
        version="",
        server_version=fetch_version(target.endpoint),
        is_decoupled=True,
        max_batch_size=0,
        vocab_size=None,
        interface="openai",
        inputs=OPTIONAL | {prompt},
        api_key=target.endpoint.api_key,
    )
    while True:
        body = plan_body(spec, model, options)
        try:
            parts = send_once(target.endpoint, target.api, body, options.timeout_s)
        except Rejected as error:
            rejected = _find_rejected(body, error.failure)
            if not rejected:
                raise _failed(target, input_kind, error.failure) from error
            model = replace(model, inputs=model.inputs - rejected)
        else:
            break
    has_ids = any(choice.get("token_ids") for part in parts for choice in part.get("choices", ()))
    if options.needs_ids and not has_ids:
        raise RequestFailed(
            f"{target.endpoint.url} does not return token ids.",
            why="each turn of a conversation contains the token ids of the previous responses",
            next_step="run another workload, such as token-norm-dist or shared-prefix",
        )
    return replace(model, inputs=frozenset(body) - {"model"})


def _find_rejected(body: dict[str, object], failure: ApiFailure) -> frozenset[str]:
    """Return the fields to remove from the request.

    If the server names an optional field that it rejected, return that field. Otherwise, return all
    extensions in the request if the status is 400 or 422, or an empty set for any other status.
    """
    named = find_rejected(body, failure, OPTIONAL)
    if named is not None:
        return frozenset({named})
    return EXTENSIONS & body.keys() if failure.status in (400, 422) else frozenset()


def _failed(target: OpenAITarget, input_kind: InputKind, failure: ApiFailure) -> TllmError:
    if input_kind == "tokens" and failure.status in (400, 422):
        return RequestFailed(
            f"{target.model} rejected a prompt of token ids.",
            why=failure.message,
            next_step="fix the reported problem, or run `tllm bench end-to-end` to send text",
        )
    return failures.request_failed(target.endpoint.url, target.model, failure)
