"""Send requests over gRPC, with one call per request on a single connection.

Because each request has its own call, an error or a cancellation affects only that request, and no
request waits for another request's response.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import grpc

from trtllm_serve_cli.bench.model.records import NO_CONNECTION, REJECTED, TIMED_OUT, RequestError
from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport import codec
from trtllm_serve_cli.bench.transport.connection import (
    TIMEOUT_ERROR,
    Arrival,
    SendFailed,
    with_timeout,
)
from trtllm_serve_cli.bench.transport.http2 import (
    Call,
    CallReset,
    ConnectionGone,
    Http2Connection,
    encode_headers,
)
from trtllm_serve_cli.bench.workloads.spec import RequestSpec
from trtllm_serve_cli.client.address import split_address
from trtllm_serve_cli.client.endpoint import Tls
from trtllm_serve_cli.client.transport.error_mapping import is_from_triton, is_rejection

_SERVICE = "/inference.GRPCInferenceService"
_STATUSES = {code.value[0]: code for code in grpc.StatusCode}
# Maps the HTTP/2 error codes REFUSED_STREAM, CANCEL and ENHANCE_YOUR_CALM (RFC 9113) to kinds of
# request errors. None of these kinds is `NO_CONNECTION`, because only a running server can reset a
# stream.
_RESET_KINDS = {7: REJECTED, 8: "cancelled", 11: REJECTED}


class GrpcConnection:
    """A gRPC connection to one model.

    The connection uses streaming calls for decoupled models, because Triton rejects unary calls to
    decoupled models.
    """

    def __init__(self, model: ServedModel, options: codec.RequestOptions) -> None:
        self._model = model
        self._options = options
        self._host, self._port = split_address(model.address)
        self._tls = _tls_arguments(model.tls, self._host)
        self._connection: Http2Connection | None = None
        self._connecting = asyncio.Lock()
        method = "ModelStreamInfer" if model.is_decoupled else "ModelInfer"
        self.decode = (
            codec.decode_stream_response if model.is_decoupled else codec.decode_unary_response
        )
        self._headers = encode_headers(
            (
                (":method", "POST"),
                (":scheme", "https" if model.tls else "http"),
                (":path", f"{_SERVICE}/{method}"),
                (":authority", model.address),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "tllm-bench"),
            )
        )

    def count_prompt_tokens(self, spec: RequestSpec) -> int:
        """Return the number of prompt tokens at the start of the response."""
        return codec.count_prompt_tokens(spec, self._model, self._options)

    def encode(self, spec: RequestSpec, request_id: str) -> bytes:
        """Encode the request as a gRPC message.

        The message starts with a zero byte, which marks it as uncompressed, and a four-byte length.
        """
        message = codec.encode_request(spec, self._model, request_id, self._options)
        return b"\0" + len(message).to_bytes(4, "big") + message

    async def send(self, payload: bytes) -> AsyncIterator[Arrival]:
        timer: asyncio.TimerHandle | None = None
        loop, timeout_s = asyncio.get_running_loop(), self._options.timeout_s
        started_s = loop.time()
        start = self._start_call(payload)
        if self._connection is None or not self._connection.has_room:
            start = with_timeout(start, timeout_s)
        connection, call = await start
        try:
            if timeout_s is not None:
                timer = loop.call_at(started_s + timeout_s, call.end, TimeoutError())
            while True:
                while call.messages:
                    yield call.messages.popleft()
                if call.is_done:
                    break
                await call.wait()
            if (failure := find_failure(call)) is not None:
                raise SendFailed(failure)
        finally:
            if timer is not None:
                timer.cancel()
            connection.cancel(call)

    async def _start_call(self, payload: bytes) -> tuple[Http2Connection, Call]:
        connection = await self._connect()
        try:
            return connection, await connection.start(self._headers, payload)
        except ConnectionGone:
            # The server closed the connection while the request waited for a free stream.
            connection = await self._connect()
        try:
            return connection, await connection.start(self._headers, payload)
        except ConnectionGone as error:
            raise SendFailed(RequestError(NO_CONNECTION, str(error))) from error

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _connect(self) -> Http2Connection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                loop = asyncio.get_running_loop()
                try:
                    _, self._connection = await loop.create_connection(
                        Http2Connection, self._host, self._port, **self._tls
                    )
                except OSError as error:
                    why = error.strerror or str(error)
                    raise SendFailed(RequestError(NO_CONNECTION, why)) from error
            return self._connection


def _tls_arguments(tls: Tls | None, host: str) -> dict[str, Any]:
    """Return the TLS arguments for `create_connection`."""
    if tls is None:
        return {}
    context = ssl.create_default_context(cafile=tls.root_certificates)
    # Like gRPC, allow `root_certificates` to contain the server's own certificate instead of its
    # CA's.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    if tls.certificate_chain is not None:
        context.load_cert_chain(tls.certificate_chain, tls.private_key)
    return {"ssl": context, "server_hostname": tls.server_name or host}


def find_failure(call: Call) -> RequestError | None:
    """Return the error of a finished call, or `None` if the call succeeded."""
    match call.error:
        case None:
            pass
        case TimeoutError():
            return TIMEOUT_ERROR
        case CallReset(code=code) as reset:
            return RequestError(_RESET_KINDS.get(code, "reset"), str(reset))
        case error:
            return RequestError(NO_CONNECTION, str(error))
    status = call.headers.get("grpc-status", "")
    if status == "0":
        return None
    code = grpc.StatusCode.UNKNOWN
    with suppress(ValueError, KeyError):
        code = _STATUSES[int(status)]
    message = unquote(call.headers.get("grpc-message", ""))
    missing = f"the server did not report a reason (HTTP {call.headers.get(':status')})"
    return to_request_error(code, message or missing)


def to_request_error(code: grpc.StatusCode, details: str) -> RequestError:
    """Convert a gRPC status code and its details to a request error."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestError(TIMED_OUT, details)
    if is_rejection(details) or code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return RequestError(REJECTED, details)
    if code is grpc.StatusCode.UNAVAILABLE and not is_from_triton(details):
        return RequestError(NO_CONNECTION, details)
    return RequestError(code.name.lower(), details)
