"""Make requests for Triton's API stoppable.

Triton does not report to its models that a client has disconnected, unless it streams the response.
So the gateway adds an id to a request without one. If the client disconnects, the gateway stops the
request with its id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from trtllm_serve_cli.gateway.door.inference_body import InferenceBody


@dataclass(frozen=True, slots=True)
class StoppableRequest:
    """The body of a request with an id, and of the request that stops it.

    The id is the client's, or one that only this request has. `stop` is None if Triton stops the
    request itself, because it streams the response.
    """

    request_id: str
    is_client_id: bool
    body: InferenceBody
    stop: InferenceBody | None

    def restore(self, response: InferenceBody) -> InferenceBody:
        """Return Triton's response as it is without the gateway's id."""
        if self.is_client_id:
            return response
        request_id = self.request_id.encode()
        without = response.json.replace(b'"id":"%b",' % request_id, b"", 1)
        return response.with_json(without.replace(request_id, b"<id_unknown>"))


def make_stoppable(
    body: InferenceBody, *, is_generate: bool, max_batch_size: int
) -> StoppableRequest | None:
    """Return the body of a request, which must be valid JSON, with an id.

    `is_generate` is true for the fields of `generate` and `generate_stream`, and false for the
    tensors of `infer`. `max_batch_size` is that of the model, or 0 if its tensors have no batch
    dimension.

    Return None if the body is not an inference request, stops another request, or requests a
    stream without an id.
    """
    try:
        fields = msgspec.json.decode(body.json, type=dict[str, msgspec.Raw])
        own = msgspec.json.decode(fields.get("id", b'""'), type=str)
        stop = {"stop": True} if is_generate else _add_stop(fields, max_batch_size)
    except msgspec.ValidationError:
        return None
    if stop is None or not fields or "stop" in fields or ("id" in fields and not own):
        return None
    if is_generate and bytes(fields.get("stream", b"false")) != b"false":
        return StoppableRequest(own, True, body, None) if own else None
    request_id = own or f"gateway-{uuid.uuid4().hex}"
    # A request that stops another one needs values for the required inputs, too.
    stopping = body.with_json(msgspec.json.encode({"id": request_id, **fields, **stop}))
    if own:
        return StoppableRequest(own, True, body, stopping)
    start = b'{"id":"%b",' % request_id.encode()
    running = body.with_json(start + body.json.partition(b"{")[2])
    return StoppableRequest(request_id, False, running, stopping)


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]


def _add_stop(fields: Mapping[str, msgspec.Raw], max_batch_size: int) -> dict[str, Any] | None:
    """Return the `inputs` of an `infer` request with the input `stop`.

    Return None if the model would reject the request, or if it contains `stop`. Raise
    `msgspec.ValidationError` if an input is invalid.
    """
    inputs = msgspec.json.decode(fields.get("inputs", b"[]"), type=list[msgspec.Raw])
    tensors = [msgspec.json.decode(each, type=_Tensor) for each in inputs]
    if not tensors or any(each.name == "stop" for each in tensors):
        return None
    num_prompts = [*tensors[0].shape, 1][0] if max_batch_size else 1
    if not 1 <= num_prompts <= max(1, max_batch_size):
        return None
    shape = [num_prompts, 1] if max_batch_size else [1]
    stop = {"name": "stop", "datatype": "BOOL", "shape": shape, "data": [True] * num_prompts}
    return {"inputs": [stop, *inputs]}
