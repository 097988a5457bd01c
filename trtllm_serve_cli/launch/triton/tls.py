"""The certificate of a server's gRPC, looked at before Triton does."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from trtllm_serve_cli.client.endpoint import Tls
from trtllm_serve_cli.errors import BadInput

_FLIGHTS = 4


def plan_tls(certificate: Path | None, key: Path | None, root: Path | None) -> Tls | None:
    """How this machine's clients trust a server with these files; None for one without.

    They trust this very certificate, whatever name it is for. Of clients that `root` has to vouch
    for, ours shows the server's own certificate. Raises `BadInput` for files that cannot be read,
    that do not belong together, and for one without the other.
    """
    if certificate is None or key is None:
        if certificate is key is root:
            return None
        raise BadInput(
            "TLS needs a certificate and its key.",
            why="only one of --grpc-server-cert and --grpc-server-key is given, or neither",
            next_step="give both: --grpc-server-cert server.crt --grpc-server-key server.key",
        )
    name = _read_name(certificate, key)
    if root is None:
        return Tls(str(certificate), name)
    _check_root(root)
    return Tls(str(certificate), name, certificate_chain=str(certificate), private_key=str(key))


def _read_name(certificate: Path, key: Path) -> str | None:
    """What the certificate calls its server, learnt in a handshake with ourselves."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        # Without a password of ours, OpenSSL would ask the terminal for one.
        server.load_cert_chain(certificate, key, password="")
        client.load_verify_locations(certificate)
        facts = _handshake(client, server)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(
            f"{certificate} and {key} cannot be used for TLS.",
            why=str(error),
            next_step="give a certificate in PEM and its own key, without a password: "
            "--grpc-server-cert server.crt --grpc-server-key server.key",
        ) from error
    names = [value for kind, value in facts.get("subjectAltName", ()) if kind == "DNS"]
    names += [value for pairs in facts.get("subject", ()) for kind, value in pairs
              if kind == "commonName"]  # fmt: skip
    return names[0].replace("*", "server") if names else None


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> Any:
    """What the client learns of the server's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_FLIGHTS):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours.getpeercert()


def _check_root(root: Path) -> None:
    try:
        ssl.create_default_context(cafile=str(root))
    except (OSError, ssl.SSLError) as error:
        raise BadInput(
            f"{root} holds no certificate.",
            why=str(error),
            next_step="give the certificate of who signs the clients': --grpc-root-cert ca.crt",
        ) from error
