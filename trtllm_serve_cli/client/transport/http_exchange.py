"""Read HTTP responses with a deadline, for Triton's generate_stream endpoint and the OpenAI API."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse

from trtllm_serve_cli.client.transport.events import EventParser

CONNECT_TIMEOUT_S = 10.0
LONGEST_ERROR_BYTES = 64 * 1024


def read_events(
    response: HTTPResponse, sock: socket.socket, deadline_s: float | None
) -> Iterator[tuple[float, str]]:
    """Yield the arrival time and the data of each event in a response.

    The arrival time of an event is the time when its last bytes were read. `sock` is the
    response's socket. Raise `TimeoutError` at the deadline.
    """
    parser = EventParser()
    while True:
        sock.settimeout(find_remaining_s(deadline_s))
        received = response.read1()
        if not received:
            return
        at_s = time.monotonic()
        for data in parser.feed(received):
            yield at_s, data


def find_remaining_s(deadline_s: float | None) -> float | None:
    """Return the time until the deadline, or None if there is no deadline.

    Raise `TimeoutError` if the deadline has passed.
    """
    if deadline_s is None:
        return None
    remaining_s = deadline_s - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s


def shut_down(sock: socket.socket) -> None:
    """Shut down `sock` to wake the thread that is reading from it.

    Closing the socket would not wake the thread.
    """
    with suppress(OSError):  # the socket may already be closed after the response
        sock.shutdown(socket.SHUT_RDWR)


def describe_failure(error: Exception) -> str:
    """Return a description of `error` for the user.

    For an operating-system error, return the system's message. For any other error, return the
    exception's text, or its type name if the text is empty.
    """
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
