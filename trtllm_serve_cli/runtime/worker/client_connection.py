"""Send messages to a client of an engine worker, and track the client's requests."""

from __future__ import annotations

import socket
from typing import Any

from .protocol import FrameNumbers

# An engine id contains the request id in the low 40 bits and the client number in the higher bits.
CLIENT_SHIFT = 40
REQUEST_ID_MASK = (1 << CLIENT_SHIFT) - 1


class ClientConnection:
    """A client: the owner (the model that started the worker), another model, or a gateway.

    Request ids are unique only within one client, so the engine id of a request also contains the
    client number.

    More than `max_unanswered_pings` unanswered pings indicate that the client hangs, or that a
    frame between the client and the worker is incomplete. The worker then cancels the client's
    requests and sends the client no more messages. Unanswered pings are counted instead of seconds,
    because the worker sends no pings during a long engine step, so even a responsive client sends
    no pongs during that time.
    """

    def __init__(self, number: int, sock: socket.socket, max_unanswered_pings: int) -> None:
        self.number = number
        self._max_unanswered_pings = max_unanswered_pings
        self.sock = sock
        # Maps the engine id of each request to the number of its sequences that have not ended.
        self.open: dict[int, int] = {}
        # False if the owner has stopped reading the worker's messages or answering pings. Always
        # true for other clients, because the worker disconnects them instead.
        self.reads = True
        self.numbers = FrameNumbers()
        # The number of pings since the last pong. None until the first pong, so that the limit does
        # not apply to older clients, which do not answer pings.
        self.num_unanswered: int | None = None

    def engine_id(self, request_id: int) -> int:
        return self.number << CLIENT_SHIFT | request_id

    def send(self, message: dict[str, Any]) -> None:
        self.sock.sendall(self.numbers.encode(message))

    def ping(self) -> None:
        """Send a ping.

        Raise `BlockingIOError` if too many pings are unanswered or sending times out, or another
        `OSError` if the connection fails.
        """
        if self.num_unanswered is not None:
            self.num_unanswered += 1
            if self.num_unanswered > self._max_unanswered_pings:
                raise BlockingIOError("the client does not respond to pings")
        self.send({"is": "ping"})
