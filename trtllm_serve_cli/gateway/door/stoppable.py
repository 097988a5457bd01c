"""Make requests to Triton's `generate` and `infer` stoppable.

Triton does not report to its models that a client has disconnected, unless it streams the response.
So the gateway adds an id to the request. If the client disconnects, the gateway stops the request
with this id.
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
    """The body of a request with an id of the gateway, and of the request that stops it."""

    request_id: bytes
    body: InferenceBody
    stop: InferenceBody

    def restore(self, response: InferenceBody) -> InferenceBody:
        """Return Triton's response as it is without the id."""
        without = response.json.replace(b'"id":"%b",' % self.request_id, b"", 1)
        return response.with_json(without.replace(self.request_id, b"<id_unknown>"))


def make_stoppable(
    body: InferenceBody, *, is_generate: bool, max_batch_size: int
) -> StoppableRequest | None:
    """Add an id to the body of a request, which must be valid JSON.

    `is_generate` is false for `infer`. `max_batch_size` is that of the model, or 0 if its tensors
    have no batch dimension.

    Return None if the body is not an inference request, or contains an id, with which the client
    can stop the request itself. Stopping it here could end requests of other clients with the same
    id.
    """
    try:
        fields = msgspec.json.decode(body.json, type=dict[str, msgspec.Raw])
        stop = {"stop": True} if is_generate else _add_stop(fields, max_batch_size)
    except msgspec.ValidationError:
        return None
    if stop is None or not fields or {"id", "stop"} & fields.keys():
        return None
    request_id = f"gateway-{uuid.uuid4().hex}".encode()
    start = b'{"id":"%b",' % request_id
    # A request that stops another one needs values for the required inputs, too.
    stopping = start + msgspec.json.encode({**fields, **stop})[1:]
    running = start + body.json.partition(b"{")[2]
    return StoppableRequest(request_id, body.with_json(running), body.with_json(stopping))


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
