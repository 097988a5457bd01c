"""Where a server answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of one Triton server, each `host:port`.

    `restricted_token` opens the APIs that `tllm start` restricts (model repository and the like);
    it travels in the header `RESTRICTED_HEADER` and is known only to whoever can read the server's
    state folder.
    """

    grpc: str = "127.0.0.1:8001"
    http: str = "127.0.0.1:8000"
    metrics: str = "127.0.0.1:8002"
    restricted_token: str | None = None


RESTRICTED_HEADER = "tllm-token"
