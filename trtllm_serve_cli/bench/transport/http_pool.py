"""Send requests over reusable HTTP connections and return the data of each event.

This module implements a minimal HTTP/1.1 client with asyncio's protocols. A full HTTP library would
use additional CPU time for redirects, cookies and proxies, and the benchmark would count that time
as server latency.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator

from trtllm_serve_cli.bench.model.records import NO_CONNECTION, REJECTED, RequestError
from trtllm_serve_cli.bench.transport.connection import (
    TIMEOUT_ERROR,
    Arrival,
    SendFailed,
    with_timeout,
)
from trtllm_serve_cli.client.transport.error_mapping import is_rejection
from trtllm_serve_cli.client.transport.openai.failures import find_error

_DATA = b"data:"
# A blank line. Lines end with LF or CRLF.
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_LONGEST_MESSAGE = 500


class HttpPool:
    """A pool of HTTP connections to one server.

    Each request in flight uses a separate connection. Later requests reuse idle connections. If
    `end_mark` is set, a request fails unless the data of its last event is `end_mark`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        timeout_s: float | None,
        *,
        tls: ssl.SSLContext | None = None,
        end_mark: bytes = b"",
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._timeout_s = timeout_s
        self._end_mark = end_mark
        self._idle: list[_Link] = []

    async def send(self, payload: bytes) -> AsyncIterator[Arrival]:
        """Send a request and yield the arrival time and the data of each event.

        The last item is the end time of the response, with empty data. Raise `SendFailed` if the
        request fails.
        """
        timer: asyncio.TimerHandle | None = None
        loop, timeout_s = asyncio.get_running_loop(), self._timeout_s
        started_s = loop.time()
        link = self._take_idle()
        if link is None:
            link = await with_timeout(self._connect(), timeout_s)
        try:
            if timeout_s is not None:
                timer = loop.call_at(started_s + timeout_s, link.give_up)
            link.start(payload)
            last = b""
            while True:
                while link.events:
                    arrival = link.events.popleft()
                    last = arrival[1]
                    yield arrival
                if link.is_done:
                    break
                await link.wait()
            if link.error is not None:
                raise SendFailed(link.error)
            if last != self._end_mark and self._end_mark:
                mark = self._end_mark.decode()
                raise SendFailed(RequestError("server", f"the response ended without {mark}"))
            yield link.ended_s, b""
        finally:
            if timer is not None:
                timer.cancel()
            if link.is_reusable:
                self._idle.append(link)
            else:
                link.abort()

    async def close(self) -> None:
        for link in self._idle:
            link.abort()

    def _take_idle(self) -> _Link | None:
        while self._idle:
            link = self._idle.pop()
            if link.is_reusable:
                return link
        return None

    async def _connect(self) -> _Link:
        try:
            _, link = await asyncio.get_running_loop().create_connection(
                _Link, self._host, self._port, ssl=self._tls
            )
        except OSError as error:
            raise SendFailed(RequestError(NO_CONNECTION, error.strerror or str(error))) from error
        return link


class _Link(asyncio.Protocol):
    """An HTTP connection and the response it is receiving."""

    def __init__(self) -> None:
        self.events: deque[Arrival] = deque()
        self.ended_s = 0.0
        self.error: RequestError | None = None
        self.is_done = True
        self._is_open = False
        self._waiter: asyncio.Future[None] | None = None
        self._parser = ResponseParser()

    @property
    def is_reusable(self) -> bool:
        return self._is_open and self.is_done and self._parser.keeps_alive and self.error is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_open = True

    def start(self, payload: bytes) -> None:
        self.is_done, self.error = False, None
        self._parser = ResponseParser()
        self._transport.write(payload)

    async def wait(self) -> None:
        """Wait until an event arrives or the response ends."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def give_up(self) -> None:
        self._end(TIMEOUT_ERROR)
        self.abort()

    def abort(self) -> None:
        self._is_open = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        at_s = time.perf_counter()
        if self.is_done:
            # The server sent data after the end of the response, so the connection is unusable.
            self.abort()
            return
        try:
            self.events.extend((at_s, event) for event in self._parser.feed(data))
        except ValueError as error:
            self._end(RequestError("server", f"the response is not valid HTTP: {error}"))
            self.abort()
            return
        if self._parser.is_done:
            self._end(self._parser.error)
        elif self.events:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        if self.is_done:
            return
        if self._parser.ends_with_connection:
            self._parser.keeps_alive = False
            self._end(self._parser.error)
        else:
            self._end(RequestError(NO_CONNECTION, str(exc or "the server closed the connection")))

    def _end(self, error: RequestError | None) -> None:
        if not self.is_done:
            self.is_done, self.error, self.ended_s = True, error, time.perf_counter()
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ResponseParser:
    """An incremental parser that returns the data of each event in one HTTP response.

    A response that is not an event stream is treated as one event. `feed` raises `ValueError` if
    the response is not valid HTTP.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.keeps_alive = True
        self.ends_with_connection = False
        self.status = 0
        self._unparsed = b""
        self._body = b""
        self._has_head = False
        self._is_chunked = False
        self._is_stream = False
        self._remaining = 0

    @property
    def error(self) -> RequestError | None:
        """The error in the response, or `None` if the status is 200."""
        if self.status == 200:
            return None
        message = _read_message(self._body)
        return RequestError(REJECTED if is_rejection(message) else f"http_{self.status}", message)

    def feed(self, data: bytes) -> list[bytes]:
        """Parse received data and return the data of each event that is now complete."""
        self._unparsed += data
        if not self._has_head and not self._read_head():
            return []
        self._body += self._take_chunks() if self._is_chunked else self._take_rest()
        if self.status != 200:
            return []
        if not self._is_stream:
            if not self.is_done:
                return []
            whole, self._body = self._body, b""
            return [whole]
        *events, self._body = _split_events(self._body)
        return [found for event in events if (found := _read_data(event)) is not None]

    def _read_head(self) -> bool:
        head, end, rest = self._unparsed.partition(b"\r\n\r\n")
        if not end:
            if len(head) > 1 << 16:
                raise ValueError("the header is longer than 64 KiB")
            return False
        first, *lines = head.split(b"\r\n")
        version, _, status = first.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError(f"the first line starts with {first[:40]!r} instead of HTTP/1.")
        self.status = int(status[:3])
        headers = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        self._is_chunked = headers.get(b"transfer-encoding") == b"chunked"
        self._is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        self._remaining = int(headers.get(b"content-length", b"-1"))
        self.ends_with_connection = self._remaining < 0 and not self._is_chunked
        self.keeps_alive = headers.get(b"connection") != b"close" and not self.ends_with_connection
        self._unparsed, self._has_head = rest, True
        return True

    def _take_rest(self) -> bytes:
        taken, self._unparsed = self._unparsed, b""
        if not self.ends_with_connection:
            self._remaining -= len(taken)
            self.is_done = self._remaining <= 0
        return taken

    def _take_chunks(self) -> bytes:
        """Return the data in all complete chunks. A chunk of length 0 marks the end of the body."""
        taken = []
        while True:
            size, end, rest = self._unparsed.partition(b"\r\n")
            if not end:
                break
            length = int(size.partition(b";")[0], 16)
            if len(rest) < length + 2:
                break
            taken.append(rest[:length])
            self._unparsed = rest[length + 2 :]
            if not length:
                self.is_done = True
                break
        return b"".join(taken)


def _split_events(body: bytes) -> list[bytes]:
    """Split a body at blank lines. The last part is an incomplete event or is empty."""
    if b"\r" in body:
        return _EVENT_END.split(body)
    return body.split(b"\n\n")  # five times as fast as the regular expression


def _read_data(event: bytes) -> bytes | None:
    """Return an event's data, or `None` if the event does not have a data field."""
    lines = [line for line in event.split(b"\n") if line.startswith(_DATA)]
    if not lines:
        return None
    return b"\n".join(line[len(_DATA) :].strip() for line in lines)


def _read_message(content: bytes) -> str:
    """Return the message in an error response, or the whole body if its format is unknown.

    The result is truncated to `_LONGEST_MESSAGE` characters.
    """
    text = content.decode(errors="replace").strip().removeprefix("data:").strip()
    try:
        details = find_error(json.loads(text))
    except (ValueError, RecursionError):
        details = None
    return (details[0] if details else text)[:_LONGEST_MESSAGE]
