"""Check whether Triton responds on its gRPC port, without a gRPC library.

The supervisor does not import `grpc`, because the library uses 20 MB of memory and starts threads
that do not survive a fork. The `ServerLive` request has an empty message, and any response shows
that Triton is alive. A few HTTP/2 frames are therefore sufficient (RFC 9113 and RFC 7541). Only a
timeout means that Triton does not respond. A refused or reset connection counts as a response.
"""

from __future__ import annotations

import socket
import ssl

from trtllm_serve_cli.client.endpoint import Tls

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PATH = b"/inference.GRPCInferenceService/ServerLive"
_DATA, _HEADERS, _SETTINGS = 0x0, 0x1, 0x4
_END_STREAM, _END_HEADERS = 0x1, 0x4
_FRAME_HEADER_BYTES = 9
# An uncompressed, empty gRPC message.
_EMPTY_MESSAGE = bytes(5)


def responds_on_grpc(address: str, tls: Tls | None, timeout_s: float) -> bool:
    """Return False if Triton does not respond on `address` within `timeout_s`, otherwise True."""
    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host, int(port)), timeout_s) as plain,
            _encrypt(plain, host, tls) as connection,
        ):
            connection.sendall(make_request(address, "http" if tls is None else "https"))
            read_response(connection)
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def _encrypt(plain: socket.socket, host: str, tls: Tls | None) -> socket.socket:
    if tls is None:
        return plain
    # Skip certificate verification, because the request contains no secret and the response is
    # discarded.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if tls.certificate_chain is not None:
        context.load_cert_chain(tls.certificate_chain, tls.private_key)
    return context.wrap_socket(plain, server_hostname=tls.server_name or host)


def make_request(address: str, scheme: str) -> bytes:
    """Return the bytes that open a connection and send a `ServerLive` request on stream 1."""
    headers = b"".join(
        (
            b"\x83",  # :method: POST
            b"\x86" if scheme == "http" else b"\x87",  # :scheme
            b"\x04" + _string(_PATH),  # :path
            b"\x01" + _string(address.encode()),  # :authority
            b"\x0f\x10" + _string(b"application/grpc"),  # content-type
            b"\x00" + _string(b"te") + _string(b"trailers"),
        )
    )
    return b"".join(
        (
            _PREFACE,
            _frame(_SETTINGS, 0, 0, b""),
            _frame(_HEADERS, _END_HEADERS, 1, headers),
            _frame(_DATA, _END_STREAM, 1, _EMPTY_MESSAGE),
        )
    )


def _string(text: bytes) -> bytes:
    """Encode `text` as an HPACK string literal. The maximum length is 126 bytes."""
    return bytes((len(text),)) + text


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def read_response(connection: socket.socket) -> bool:
    """Wait for response headers on stream 1 and return True when they arrive.

    Return False if the server closes the connection first.
    """
    with connection.makefile("rb") as frames:
        while len(header := frames.read(_FRAME_HEADER_BYTES)) == _FRAME_HEADER_BYTES:
            frames.read(int.from_bytes(header[:3], "big"))
            kind, stream = header[3], int.from_bytes(header[5:], "big")
            if (kind, stream) == (_HEADERS, 1):
                return True
    return False
