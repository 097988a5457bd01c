"""Where a server answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tls:
    """How a gRPC service is trusted; paths of PEM files.

    `server_name` is what its certificate calls it, where that is not its address. The last two are
    what a client shows to a server that wants to know who it is.
    """

    root_certificates: str
    server_name: str | None = None
    certificate_chain: str | None = None
    private_key: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of one Triton server, each `host:port`.

    `restricted_token` opens the APIs that `tllm start` restricts (model repository and the like);
    it travels in the header `RESTRICTED_HEADER` and is known only to whoever can read the server's
    state folder. `tls` is of gRPC alone: Triton has none for HTTP.
    """

    grpc: str = "127.0.0.1:8001"
    http: str = "127.0.0.1:8000"
    metrics: str = "127.0.0.1:8002"
    restricted_token: str | None = None
    tls: Tls | None = None


RESTRICTED_HEADER = "tllm-token"
