"""Read request bodies and send responses, with limits for large bodies and slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trtllm_serve_cli.gateway.errors import ApiError, too_deep
from trtllm_serve_cli.gateway.response_body import ResponseBody, find_response_body
from trtllm_serve_cli.gateway.schema.body_errors import explain_invalid_field, explain_invalid_json
from trtllm_serve_cli.gateway.schema.marks import check_rejected

# If a body exceeds the limit, the gateway reads and discards up to this many additional bytes.
_MAX_DISCARDED_BYTES = 32 * 1024 * 1024
Body = TypeVar("Body", bound=msgspec.Struct)
Result = TypeVar("Result")
_JSON_TYPES = ("application/json", "text/json")


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """Return the request body and store its size in `request.state.num_body_bytes`.

    Raise `ApiError` with status 413 if the body exceeds `max_bytes`, 408 if it does not arrive
    within `timeout_s` seconds, or 499 if the client disconnects.
    """
    try:
        body = await asyncio.wait_for(_read_body(request, max_bytes), timeout_s)
    except asyncio.TimeoutError as error:
        raise ApiError(
            408,
            f"The request body did not arrive within {timeout_s:g} s. Retry the request.",
            code="request_timeout",
            headers={"connection": "close"},
        ) from error
    except ClientDisconnect as error:
        raise ApiError(499, "The client disconnected before sending the whole body.") from error
    request.state.num_body_bytes = len(body)
    return body


async def _read_body(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    length = int(declared) if declared.isdecimal() else 0
    is_too_large = length > max_bytes
    chunks, size = [], 0
    # If the body exceeds the limit by at most _MAX_DISCARDED_BYTES, read and discard it. If the
    # connection were closed early, a client that is still sending would get a connection error
    # instead of the response.
    max_read = max_bytes + _MAX_DISCARDED_BYTES
    if length > max_read:
        raise _too_large(max_bytes)
    async for chunk in request.stream():
        size += len(chunk)
        is_too_large = is_too_large or size > max_bytes
        if size > max_read:
            break
        if not is_too_large:
            chunks.append(chunk)
    if is_too_large:
        raise _too_large(max_bytes)
    return b"".join(chunks)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"The request body exceeds the limit of {max_bytes} bytes. Send a smaller request, or ask "
        "the operator to increase --openai-max-body-mib.",
        code="request_too_large",
    )


async def read_json(request: Request, kind: type[Body]) -> Body:
    """Read a JSON request body and return it as an instance of `kind`.

    A missing Content-Type header is accepted. Raise `ApiError` (415) if the content type is not
    JSON. Also raise the errors of `read_body` and `decode_json`.
    """
    content_type = request.headers.get("content-type", "application/json")
    if content_type.split(";")[0].strip().lower() not in _JSON_TYPES:
        raise ApiError(
            415, f"The content type {content_type!r} is not supported. Use 'application/json'."
        )
    config = request.app.state.config
    data = await read_body(request, config.max_body_bytes, config.receive_timeout_s)
    return decode_json(data, kind)


def decode_json(data: bytes, kind: type[Body]) -> Body:
    """Decode JSON and return it as an instance of `kind`.

    Raise `ApiError` (400) if `data` is not valid JSON or is nested too deeply, or if a field is
    invalid or not supported. The error for a field names the field.
    """
    try:
        body = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise explain_invalid_field(error, kind) from error
    except RecursionError as error:
        raise too_deep() from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise explain_invalid_json(data, error) from error
    check_rejected(body)
    return body


class JsonResponse(Response):
    """A response whose JSON body is already encoded."""

    media_type = "application/json"


def json_response(content: Any, status: int = 200) -> JsonResponse:
    """Return a response with `content` as JSON."""
    return JsonResponse(msgspec.json.encode(content), status)


class EventStream(Response):
    """A response that streams server-sent events.

    `events` yields chunks of bytes, which need not end at event boundaries. The iterator is closed
    when the stream ends, when the client disconnects, or when a send stalls (see `_SendWatchdog`,
    whose timeout is `send_timeout_s` seconds). After a stalled send, the connection is aborted.
    """

    def __init__(
        self, events: AsyncGenerator[bytes, None], send_timeout_s: float, status: int = 200
    ) -> None:
        self._events = events
        self._send_timeout_s = send_timeout_s
        self.status_code = status
        self.background = None
        self.init_headers(
            {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = find_response_body(scope)
        await run_while_connected(receive, lambda: self._send_events(send, body))

    async def _send_events(self, send: Send, body: ResponseBody | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        watchdog = _SendWatchdog(task, self._send_timeout_s)
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            async for event in self._events:
                watchdog.is_sending = True
                await send({"type": "http.response.body", "body": event, "more_body": True})
                watchdog.is_sending = False
                watchdog.num_sent += 1
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not watchdog.has_cancelled:
                raise
            # Abort the connection, as if the client had disconnected. A normal close would first
            # wait for the client to read the buffered data.
            if body is not None:
                body.abort()
        finally:
            watchdog.close()
            await self._events.aclose()


class _SendWatchdog:
    """A timer that cancels a task if a send stalls.

    Every `timeout_s` seconds, the timer checks whether the send that was pending at the previous
    check is still pending. If so, it cancels the task. A stalled send therefore ends after at most
    `2 * timeout_s` seconds. One timer serves all chunks of a stream, because a separate timeout for
    each chunk would use much more CPU time.
    """

    def __init__(self, task: asyncio.Task[Any], timeout_s: float) -> None:
        self.num_sent = 0
        self.is_sending = False
        self.has_cancelled = False
        self._task = task
        self._timeout_s = timeout_s
        # Index of the send that was pending at the previous check, or None if no send was pending.
        self._pending: int | None = None
        self._start()

    def _start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._check)

    def _check(self) -> None:
        pending = self.num_sent if self.is_sending else None
        if pending is not None and pending == self._pending:
            self.has_cancelled = True
            self._task.cancel()
            return
        self._pending = pending
        self._start()

    def close(self) -> None:
        self._timer.cancel()


async def run_while_connected(
    receive: Receive, work: Callable[[], Awaitable[Result]]
) -> Result | None:
    """Run `work` and return its result, unless the client disconnects.

    If the client disconnects, cancel `work` and return None. The request body must already have
    been read.
    """
    task = asyncio.ensure_future(work())
    listener = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, listener), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for each in (task, listener):
            if not each.done():
                each.cancel()
        await asyncio.gather(task, listener, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
