"""Check the header size and the API key of each request, and track the response.

The guard is pure ASGI middleware: it does not copy bodies, start tasks or read the content of
stream chunks, so it adds little latency.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trtllm_serve_cli.gateway.access.call import SCOPE_KEY, Call, read_call
from trtllm_serve_cli.gateway.access.keys import KeyRing
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.http import JsonResponse

# Paths that do not require an API key: the chat page, and the health checks of load balancers.
PUBLIC_PATHS = frozenset({"/", "/health", "/ping"})


class Guard:
    """ASGI middleware that checks API keys and tracks each request in a `Call`.

    The guard rejects requests whose headers exceed `max_header_bytes`, and requests without a valid
    key if `keys` requires one and the path is not in `PUBLIC_PATHS`. `on_start` is called when a
    request arrives, for example to start a span. `on_end` is called after the response, for example
    to update metrics.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        max_header_bytes: int,
        on_end: Callable[[Call], None],
        on_start: Callable[[Call], None] | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._max_header_bytes = max_header_bytes
        self._on_end = on_end
        self._on_start = on_start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = scope[SCOPE_KEY] = read_call(scope)
        if self._on_start is not None:
            self._on_start(call)
        watched = _watch(call, send)
        try:
            try:
                self._check(call, scope)
            except ApiError as error:
                body = error.body(scope)
                response = JsonResponse(body, error.status, error.headers())
                await response(scope, receive, watched)
            else:
                await self._app(scope, receive, watched)
        except Exception:
            if not call.status:
                response = JsonResponse(_bug(call).body(scope), 500)
                await response(scope, receive, watched)
            call.late_error = 500
            raise
        finally:
            call.end()
            self._on_end(call)

    def _check(self, call: Call, scope: Scope) -> None:
        headers = scope["headers"]
        num_bytes = sum(len(name) + len(value) for name, value in headers)
        if num_bytes > self._max_header_bytes:
            raise ApiError(
                431,
                f"The request headers total {num_bytes} bytes, but the maximum is "
                f"{self._max_header_bytes} bytes. Send fewer or shorter headers.",
                headers={"connection": "close"},
            )
        token = find_token(headers)
        call.key = self._keys.find(token) if token else None
        if call.key is None and self._keys.is_required and scope["path"] not in PUBLIC_PATHS:
            call.rejected_by = "key"
            raise _unauthorized(token)


def find_token(headers: list[tuple[bytes, bytes]]) -> str:
    """Return the API key in `headers`, or "".

    OpenAI's clients send `Authorization: Bearer KEY`, and Anthropic's clients send `x-api-key`. If
    both are present, return the key in `Authorization`.
    """
    other = ""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return token.strip()
        elif name == b"x-api-key":
            other = value.decode("latin-1").strip()
    return other


def _unauthorized(token: str) -> ApiError:
    """Return the error for a missing or invalid key. The message does not contain the key."""
    message = (
        "The API key is invalid, expired or revoked. Ask the operator for a new key."
        if token
        else "No API key was provided. Send the header `Authorization: Bearer API_KEY`."
    )
    headers = {"www-authenticate": 'Bearer realm="tllm"'}
    return ApiError(401, message, code="invalid_api_key", headers=headers)


def _bug(call: Call) -> ApiError:
    return ApiError(
        500,
        "An internal error occurred in the gateway. To find the cause, search the gateway log for "
        f"the request id {call.request_id}.",
    )


def _watch(call: Call, send: Send) -> Send:
    """Wrap `send` to add response headers and record the status and end of the response."""

    def watched(message: Message) -> Awaitable[Any]:
        if message["type"] == "http.response.start":
            call.status = message["status"]
            headers = [*message["headers"], (b"x-request-id", call.request_id.encode())]
            if call.ticket is not None:
                headers += call.ticket.headers
            message = {**message, "headers": headers}
        elif not message.get("more_body", False):
            call.is_complete = True
        return send(message)

    return watched
