"""Make requests to Triton's `generate` stoppable.

Triton does not report to its models that a client has disconnected, unless it streams the response.
So the gateway adds an id to the request. If the client disconnects, the gateway stops the request
with this id.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class StoppableBody:
    """The body of a request with an id of the gateway, and of the request that stops it."""

    request_id: bytes
    body: bytes
    stop: bytes

    def restore(self, response: bytes) -> bytes:
        """Return Triton's response as it is without the id."""
        without = response.replace(b'"id":"%b",' % self.request_id, b"", 1)
        return without.replace(self.request_id, b"<id_unknown>")


def make_stoppable(body: bytes) -> StoppableBody | None:
    """Add an id to the body of a request, which must be valid JSON.

    Return None if the body is not an object, or contains an id, with which the client can stop the
    request itself. Stopping it here could end requests of other clients with the same id.
    """
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return None
    if not fields or {"id", "stop"} & fields.keys():
        return None
    request_id = f"gateway-{uuid.uuid4().hex}".encode()
    rest = body.partition(b"{")[2]
    start = b'{"id":"%b",' % request_id
    # A request that stops another one needs values for the required inputs, too.
    return StoppableBody(request_id, start + rest, start + b'"stop":true,' + rest)
