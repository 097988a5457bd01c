"""The main loop of an engine worker, which receives commands over sockets.

The main thread runs the engine's steps, and reader threads convert frames to commands. The worker
exits when the process that started it exits or closes the connection.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from ..engine import (
    OPTIONAL_FIELDS,
    Engine,
    GenerationRequest,
    InvalidRequest,
    SequenceUpdate,
    last_line,
)
from ..log import write_log, write_traceback
from ..pulse import PulseWriter
from ..request_check import check_request, fit_to_vocabulary
from .abstract_socket import accept_clients
from .client_connection import CLIENT_SHIFT, REQUEST_ID_MASK, ClientConnection
from .protocol import ProtocolError, read_frame

# Maximum interval, in seconds, between two statistics messages from an idle worker. The messages
# set the gauges for running requests to 0.
_IDLE_STATS_PERIOD_S = 0.5
# Minimum interval, in seconds, between two pings to a client. The worker sends no pings during an
# engine step.
_PING_PERIOD_S = 0.5
# Maximum number of unanswered pings. The worker cancels the requests of a client that exceeds it.
_MAX_UNANSWERED_PINGS = 60
# Timeout, in seconds, for sending a message. The worker cancels the requests of a client that
# exceeds it.
_SEND_TIMEOUT_S = 5.0
# An idle worker submits a self-test request with one prompt token after this time, in seconds,
# without engine updates. The request id contains a client number that no client has.
_SELF_TEST_PERIOD_S = 30.0
_SELF_TEST_ID = 1 << 60


class Worker:
    """The main loop of an engine worker, which ends when the owner closes its socket.

    The owner is the model that started the worker. Other models and the gateway connect to
    `listener` to receive tokens directly instead of through the owner.

    - `client_settings`: the owner's settings that other clients need.
    - `num_slots`: the number of requests that can run concurrently.
    - `max_queue_size`: the maximum number of waiting requests, or 0 for no limit.
    - `stages_s`: the durations of the worker's startup stages.
    """

    def __init__(
        self,
        engine: Engine,
        sock: socket.socket,
        *,
        listener: socket.socket | None = None,
        client_settings: Mapping[str, Any] = MappingProxyType({}),
        num_slots: int = 0,
        max_queue_size: int = 0,
        stats_period_s: float = 0.1,
        send_timeout_s: float = _SEND_TIMEOUT_S,
        self_test_period_s: float = _SELF_TEST_PERIOD_S,
        ping_period_s: float = _PING_PERIOD_S,
        max_unanswered_pings: int = _MAX_UNANSWERED_PINGS,
        pulse: PulseWriter | None = None,
        stages_s: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._engine = engine
        self._pulse = pulse or PulseWriter(None)
        self._send_timeout_s = send_timeout_s
        self._self_test_period_s = self_test_period_s
        self._self_test_due_s = time.monotonic() + self_test_period_s
        self._ping_period_s = ping_period_s
        self._ping_due_s = time.monotonic() + ping_period_s
        self._idle_wait_s = min(_IDLE_STATS_PERIOD_S, ping_period_s)
        self._max_unanswered_pings = max_unanswered_pings
        self._owner = ClientConnection(0, sock, max_unanswered_pings)
        self._limit_sending(sock)
        self._clients = {0: self._owner}
        self._listener = listener
        self._client_settings = dict(client_settings)
        self._num_slots = num_slots
        self._max_queue_size = max_queue_size
        self._stages_s = dict(stages_s)
        self._stats_period_s = stats_period_s
        self._stats_due_s = 0.0
        # Pairs of a client and its command. The command is None if the connection has ended.
        self._commands: queue.SimpleQueue[tuple[ClientConnection, dict[str, Any] | None]] = (
            queue.SimpleQueue()
        )

    def run(self) -> None:
        """Serve until the owner closes the socket.

        If the engine fails, reraise its exception. If the owner sends an invalid command, raise the
        error that the command causes.
        """
        # If the connection breaks, the owner has exited, so return without an error.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._serve()

    def _serve(self) -> None:
        self._send_ready(self._owner)
        if self._listener is not None:
            threading.Thread(target=self.accept, args=(self._listener,), daemon=True).start()
        while True:
            was_idle = not self._engine.has_work()
            updates, is_open = self._handle_commands()
            if not is_open:
                return
            if self._engine.has_work():
                if was_idle:
                    # The first step may take seconds. Send statistics before the step, so that a
                    # server that is shutting down waits for the request.
                    self._stats_due_s = 0.0
                    self._send_updates(updates)
                    updates = []
                self._pulse.work(self._num_in_flight)
                if step_updates := self._step():
                    self._pulse.note_updates()
                    self._self_test_due_s = time.monotonic() + self._self_test_period_s
                    updates += step_updates
            self._send_updates(updates)
            self._ping_clients()

    def _step(self) -> list[SequenceUpdate]:
        """Run an engine step. If the step fails, fail all requests and reraise the exception."""
        try:
            return self._engine.step()
        except Exception as error:
            why = (
                f"the engine failed ({type(error).__name__}: {last_line(error)}) and is being "
                "restarted; retry the request"
            )
            for client in self._clients.values():
                entries = [
                    SequenceUpdate(each & REQUEST_ID_MASK, error=why).to_wire()
                    for each in client.open
                ]
                with contextlib.suppress(OSError):
                    client.send({"is": "step", "updates": entries})
            raise

    def _send_ready(self, client: ClientConnection) -> None:
        limits = _as_dict(self._engine.limits)
        client.send(
            {
                "is": "ready",
                "limits": limits,
                "optional_fields": OPTIONAL_FIELDS,
                "for_guests": self._client_settings,
                "stages_s": self._stages_s,
            }
        )
        threading.Thread(target=self._read_commands, args=(client,), daemon=True).start()

    def accept(self, listener: socket.socket) -> None:
        """Accept clients on `listener` until the listener is closed."""
        for number, sock in enumerate(accept_clients(listener), 1):
            self._limit_sending(sock)
            client = ClientConnection(number, sock, self._max_unanswered_pings)
            self._commands.put((client, {"do": "join"}))

    def _limit_sending(self, sock: socket.socket) -> None:
        """Set a send timeout, so that a client that does not read cannot block other clients."""
        seconds, fraction = divmod(self._send_timeout_s, 1)
        timeout = struct.pack("ll", int(seconds), int(fraction * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    def _read_commands(self, client: ClientConnection) -> None:
        try:
            while (message := read_frame(client.sock, client.numbers)) is not None:
                if message.get("do") == "pong":
                    client.num_unanswered = 0
                else:
                    self._commands.put((client, message))
        except (OSError, ProtocolError) as error:
            # If the worker has closed the socket itself, the connection did not fail.
            if client.sock.fileno() >= 0:
                write_log("W", f"engine worker: the connection to a client failed: {error}")
        self._commands.put((client, None))

    def _handle_commands(self) -> tuple[list[SequenceUpdate], bool]:
        """Handle the queued commands. If the engine is idle, wait for a command first.

        The wait takes at most `_idle_wait_s` seconds. If the engine is still idle afterwards and a
        self-test is due, start it. Return the updates that result from the commands, and whether
        the owner is still connected.
        """
        updates: list[SequenceUpdate] = []
        try:
            if self._engine.has_work():
                self._pulse.work(self._num_in_flight)
                client, command = self._commands.get_nowait()
            else:
                self._pulse.beat()
                client, command = self._commands.get(timeout=self._idle_wait_s)
                # Report work before the command runs, because some commands, for example requests
                # with a grammar, exceed the time limit of an idle worker.
                self._pulse.work(self._num_in_flight)
            while command is not None or client is not self._owner:
                updates += self._handle(client, command)
                client, command = self._commands.get_nowait()
        except queue.Empty:
            if not self._engine.has_work() and time.monotonic() >= self._self_test_due_s:
                self._start_self_test()
            return updates, True
        return updates, False

    def _start_self_test(self) -> None:
        """Submit a request with one prompt token, whose updates are not sent to any client.

        The request generates one token, unless the engine computes embeddings.
        """
        self._self_test_due_s = time.monotonic() + self._self_test_period_s
        limits = self._engine.limits
        token, num_tokens = min(1, limits.vocab_size - 1), int(not limits.computes_embeddings)
        try:
            self._engine.submit(GenerationRequest(_SELF_TEST_ID, (token,), num_tokens))
        except Exception as error:  # an engine that rejects the request is alive
            write_log("W", f"the engine rejected its self-test: {last_line(error)}")

    def _handle(
        self, client: ClientConnection, command: dict[str, Any] | None
    ) -> list[SequenceUpdate]:
        if command is None:
            self._disconnect(client)
        elif command.get("do") == "join":
            self._clients[client.number] = client
            self._disconnect_on_error(client, lambda: self._send_ready(client))
        elif client.number in self._clients:
            try:
                return self._execute(client, command)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                self._refuse_command(client, error)
        return []

    def _refuse_command(self, client: ClientConnection, error: Exception) -> None:
        """Disconnect a client that sent an invalid command.

        Other clients' requests continue. An invalid command from the owner stops the worker.
        """
        if client is self._owner:
            raise error
        write_log("E", f"a client sent an invalid command: {type(error).__name__}: {error}")
        self._disconnect(client)

    def _disconnect(self, client: ClientConnection) -> None:
        """Close a client's connection and cancel its requests."""
        if self._clients.pop(client.number, None) is not None:
            for engine_id in client.open:
                self._engine.cancel(engine_id)
            # Shut the socket down first, because `close` alone does not wake the reader thread.
            with contextlib.suppress(OSError):
                client.sock.shutdown(socket.SHUT_RDWR)
            client.sock.close()

    def _disconnect_on_error(self, client: ClientConnection, action: Callable[[], None]) -> None:
        """Run `action`. If it raises `OSError`, disconnect the client.

        If the client is the owner, do not disconnect it. Instead, stop sending to the owner after a
        `BlockingIOError`, and reraise any other `OSError`.
        """
        try:
            action()
        except BlockingIOError:
            if client is self._owner:
                self._stop_sending_to_owner()
            else:
                self._disconnect(client)
        except OSError:
            if client is self._owner:
                raise
            self._disconnect(client)

    def _stop_sending_to_owner(self) -> None:
        """Cancel the owner's requests and stop sending to it, but keep serving other clients.

        The owner has stopped reading messages or answering pings. When the owner reads again, it
        detects that the connection has ended and restarts the worker.
        """
        write_log(
            "E",
            "the model that started the engine worker does not respond; cancelling its requests",
        )
        self._owner.reads = False
        for engine_id in self._owner.open:
            self._engine.cancel(engine_id)
        self._owner.open.clear()
        with contextlib.suppress(OSError):
            self._owner.sock.shutdown(socket.SHUT_WR)

    def _execute(self, client: ClientConnection, command: dict[str, Any]) -> list[SequenceUpdate]:
        if not client.reads:
            return []
        if command["do"] == "cancel":
            engine_id = client.engine_id(command["id"])
            client.open.pop(engine_id, None)
            self._engine.cancel(engine_id)
            return []
        received = GenerationRequest.from_message(command["request"])
        request = replace(received, id=client.engine_id(received.id))
        try:
            self._check_room()
            check_request(request, self._engine.limits)
            self._engine.submit(fit_to_vocabulary(request, self._engine.limits))
        except InvalidRequest as error:
            return [SequenceUpdate(request.id, error=str(error), rejected=True)]
        except Exception as error:  # an error in one request must not affect other requests
            write_traceback()
            why = (
                f"the engine could not accept the request: {type(error).__name__}: {error}; see "
                "the server's log"
            )
            return [SequenceUpdate(request.id, error=why)]
        client.open[request.id] = request.num_return_sequences
        return []

    @property
    def _num_in_flight(self) -> int:
        return sum(len(client.open) for client in self._clients.values())

    def _check_room(self) -> None:
        """Raise `InvalidRequest` if the queue is full (`max_queue_size`)."""
        if self._max_queue_size and self._num_in_flight >= self._num_slots + self._max_queue_size:
            # Use the error message of Triton's queue, so that clients need to match only one
            # message. NVIDIA's backend uses a different message.
            raise InvalidRequest(
                f"Exceeds maximum queue size. Maximum queue size of {self._max_queue_size} has "
                "been reached, please try again later"
            )

    def _send_updates(self, updates: list[SequenceUpdate]) -> None:
        now_s = time.monotonic()
        # When the engine becomes idle, report immediately that all slots are free.
        is_stats_due = now_s >= self._stats_due_s or not self._engine.has_work()
        if not updates and not is_stats_due:
            return
        entries_by_client: dict[int, list[list[Any]]] = {0: []}
        for update in updates:
            number = update.request_id >> CLIENT_SHIFT
            if (client := self._clients.get(number)) is None:
                continue
            _count_open_sequences(client.open, update)
            entry = update.to_wire()
            entry[0] &= REQUEST_ID_MASK
            entries_by_client.setdefault(number, []).append(entry)
        for number, entries in entries_by_client.items():
            fields: dict[str, Any] = {}
            if number == 0 and is_stats_due:
                stats = self._engine.stats()
                self._pulse.note_iteration(stats.iteration)
                fields["stats"] = _as_dict(stats)
                self._stats_due_s = now_s + self._stats_period_s
            client = self._clients[number]
            if client.reads and (entries or fields):
                self._disconnect_on_error(client, partial(self._send_step, client, entries, fields))

    def _send_step(
        self, client: ClientConnection, entries: list[list[Any]], fields: dict[str, Any]
    ) -> None:
        """Send a `step` message with `entries` and `fields`.

        If the message is too long, send several messages. Fail the request of an entry that is too
        long for one message.
        """
        try:
            client.send({"is": "step", "updates": entries, **fields})
        except ProtocolError as error:
            half = len(entries) // 2
            if half:
                self._send_step(client, entries[:half], {})
            else:
                entries = [self._fail_request(client, entries[0][0], error)]
            self._send_step(client, entries[half:], fields)

    def _fail_request(
        self, client: ClientConnection, request_id: int, error: ProtocolError
    ) -> list[Any]:
        """Cancel a request whose update cannot be sent. Return the entry that reports the error."""
        engine_id = client.engine_id(request_id)
        client.open.pop(engine_id, None)
        self._engine.cancel(engine_id)
        why = (
            f"the response of an engine step cannot be sent, because {error}; request fewer log "
            "probabilities or shorten the prompt"
        )
        return SequenceUpdate(request_id, error=why).to_wire()

    def _ping_clients(self) -> None:
        """Send a ping to each client if pings are due."""
        now_s = time.monotonic()
        if now_s < self._ping_due_s:
            return
        self._ping_due_s = now_s + self._ping_period_s
        for client in list(self._clients.values()):
            if client.reads:
                self._disconnect_on_error(client, client.ping)


def _count_open_sequences(open_sequences: dict[int, int], update: SequenceUpdate) -> None:
    """Update the number of open sequences of the request in `update`."""
    if update.error is not None:
        open_sequences.pop(update.request_id, None)
    elif update.finish_reason is not None and update.request_id in open_sequences:
        open_sequences[update.request_id] -= 1
        if not open_sequences[update.request_id]:
            del open_sequences[update.request_id]


def _as_dict(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
