"""Define server addresses and credentials."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings for a gRPC client.

    All fields except `server_name` are paths to PEM files. If `root_certificates` is None, the
    client trusts the public CAs. `server_name` is the name in the server's certificate if it
    differs from the address. `certificate_chain` and `private_key` authenticate the client (mutual
    TLS).
    """

    root_certificates: str | None
    server_name: str | None = None
    certificate_chain: str | None = None
    private_key: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses (`host:port`) and the credentials of a Triton server.

    `restricted_token` grants access to the APIs that `tllm start` restricts, such as the model
    repository API. Clients send the token in the HTTP header `RESTRICTED_HEADER`. The server's
    state folder contains a copy of the token. `tls` applies only to gRPC, because Triton does not
    support TLS for HTTP.
    """

    grpc: str = "127.0.0.1:8001"
    http: str = "127.0.0.1:8000"
    metrics: str = "127.0.0.1:8002"
    restricted_token: str | None = None
    tls: Tls | None = None


RESTRICTED_HEADER = "tllm-token"
