"""Validate TLS certificates and keys before a server loads them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from trtllm_serve_cli.client.endpoint import Tls
from trtllm_serve_cli.errors import BadInput

_FLIGHTS = 4
_FLAGS = ("--grpc-server-cert", "--grpc-server-key")


def plan_tls(certificate: Path | None, key: Path | None, root: Path | None) -> Tls | None:
    """Return the TLS settings for tllm's clients, or None if all three files are None.

    tllm's clients trust only `certificate`. They use the name in the certificate as the server
    name. If `root` is set, the server requires client certificates, and tllm's clients present the
    server certificate. Raise `BadInput` if the certificate or the key is missing, if a file cannot
    be used, or if the key does not match the certificate.
    """
    if certificate is None or key is None:
        if certificate is key is root:
            return None
        raise BadInput(
            "TLS for gRPC requires a certificate and a private key.",
            next_step="pass both files, for example --grpc-server-cert server.crt "
            "--grpc-server-key server.key",
        )
    name = _read_name(certificate, key)
    if root is None:
        return Tls(str(certificate), name)
    check_ca(root, "--grpc-root-cert")
    return Tls(str(certificate), name, certificate_chain=str(certificate), private_key=str(key))


def load_certificate(certificate: Path, key: Path, flags: tuple[str, str]) -> ssl.SSLContext:
    """Return the TLS context of a server that uses `certificate` and `key`.

    Raise `BadInput` if the files cannot be used. The error suggests passing the options `flags`.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Pass an empty password, so that OpenSSL does not prompt for one on the terminal.
        server.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise _unusable(certificate, key, flags, error) from error
    return server


def _read_name(certificate: Path, key: Path) -> str | None:
    """Check the files and return the server name in the certificate, or None if it has no name.

    The check performs a TLS handshake in memory. In the server name, replace a wildcard with
    "server". Raise `BadInput` if the files cannot be used.
    """
    server = load_certificate(certificate, key, _FLAGS)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # Like gRPC, trust the server's certificate even if its CA's certificate is not in the file.
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(certificate)
        facts = _handshake(client, server)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(certificate, key, _FLAGS, error) from error
    names = [value for kind, value in facts.get("subjectAltName", ()) if kind == "DNS"]
    names += [value for pairs in facts.get("subject", ()) for kind, value in pairs
              if kind == "commonName"]  # fmt: skip
    return names[0].replace("*", "server") if names else None


def _unusable(
    certificate: Path, key: Path, flags: tuple[str, str], error: OSError | ssl.SSLError
) -> BadInput:
    return BadInput(
        f"{certificate} and {key} cannot be used for TLS.",
        why=str(error),
        next_step="pass a PEM certificate and its unencrypted private key, for example "
        f"{flags[0]} server.crt {flags[1]} server.key",
    )


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> Any:
    """Perform a TLS handshake and return the certificate that the server sent to the client."""
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


def check_ca(file: Path, flag: str) -> None:
    """Raise `BadInput` if `file` does not contain a CA certificate.

    The error suggests passing the option `flag`.
    """
    try:
        ssl.create_default_context(cafile=str(file))
    except (OSError, ssl.SSLError) as error:
        raise BadInput(
            f"{file} cannot be used as a CA certificate.",
            why=str(error),
            next_step="pass the PEM file of the CA that signs the certificates, for example "
            f"{flag} ca.crt",
        ) from error
