"""Connect a model to an engine worker to send requests and receive updates."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..engine import EngineLimits, EngineStats, GenerationRequest, SequenceUpdate, merge_updates
from ..log import write_log, write_traceback
from .abstract_socket import connect
from .protocol import FrameNumbers, ProtocolError, read_frame, read_frames
from .response_threads import ResponseThreads
from .stop_forwarding import identify_server

OnUpdate = Callable[[SequenceUpdate], None]
OnStep = Callable[[Sequence[SequenceUpdate]], None]
_RECONNECT_S = 0.2
# Maximum time, in seconds, that a request waits for the connection to a restarted worker.
RECONNECTION_TIMEOUT_S = 1.0
_CONNECT_TIMEOUT_S = 5.0
# Time, in seconds, within which a worker must start listening.
_START_TIMEOUT_S = 60.0


class WorkerFailed(Exception):
    """Raised if the engine worker cannot start or accept a request."""


class WorkerLink:
    """A model's connection to an engine worker.

    `limits` contains the engine's limits and is set when the worker is ready. The reader thread
    calls `on_step` and `on_stats` and logs their exceptions. `on_step` receives the updates of one
    or more steps before they are passed to the request handlers. `ids` yields the request ids, by
    default 1, 2 and so on.

    If steps arrive while earlier updates are being delivered, the updates of these steps are merged
    into one update per sequence. A slow model can therefore catch up: sending ten tokens in one
    response takes Triton's Python stub no longer than sending one token. A fast model receives each
    step immediately.
    """

    limits: EngineLimits

    def __init__(
        self,
        on_stats: Callable[[EngineStats], None] = lambda stats: None,
        on_step: OnStep = lambda updates: None,
        ids: Iterator[int] | None = None,
    ) -> None:
        self._on_stats = on_stats
        self._on_step = on_step
        self._lock = threading.Lock()
        # A lock for writing frames. A write may block, so the writing thread must not hold `_lock`.
        self._sending = threading.Lock()
        self._response_threads = ResponseThreads(self._deliver)
        self._handlers: dict[int, OnUpdate] = {}
        self._ids = itertools.count(1) if ids is None else ids
        self._sock: socket.socket | None = None
        # Numbers the frames on `_sock`. A new connection sets `_numbers` before `_sock`, because
        # `_send` reads both attributes without `_lock` and must not use the old numbers.
        self._numbers = FrameNumbers()
        self._closing = threading.Event()

    @property
    def is_open(self) -> bool:
        """True if a worker is connected."""
        return self._sock is not None

    @property
    def num_in_flight(self) -> int:
        """The number of requests whose updates are delivered."""
        return len(self._handlers)

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        """Send a request with the given `GenerationRequest` fields and return the request id.

        `on_update` is called for each update, from one thread at a time, until `forget` or `cancel`
        is called. After an update with an error, the worker sends no more updates of the request.
        Raise `WorkerFailed` if no worker is connected, the connection fails or the request is too
        large.
        """
        request = GenerationRequest(id=next(self._ids), **fields)
        with self._lock:
            self._handlers[request.id] = on_update
        try:
            self._send({"do": "submit", "request": request.to_message()})
        except WorkerFailed:
            self.forget(request.id)
            raise
        return request.id

    def cancel(self, request_id: int) -> None:
        """Cancel a request, free its slot in the engine, and stop delivering its updates."""
        self.forget(request_id)
        with contextlib.suppress(WorkerFailed):
            self._send({"do": "cancel", "id": request_id})

    def forget(self, request_id: int) -> None:
        """Stop delivering the updates of a request."""
        with self._lock:
            self._handlers.pop(request_id, None)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._sending:
                sock = self._sock
                if sock is None:
                    raise WorkerFailed("the engine worker is being restarted; retry the request")
                sock.sendall(self._numbers.encode(message))
        except ProtocolError as error:
            raise WorkerFailed(
                f"the request is too large: {error}; send a smaller request"
            ) from error
        except OSError as error:
            raise WorkerFailed("the engine worker has died; retry the request") from error

    def _read_until_closed(self) -> str:
        """Deliver updates until the connection ends.

        Return the error if a frame was invalid, or an empty string otherwise.
        """
        sock, failure = self._sock, ""
        assert sock is not None
        try:
            while messages := read_frames(sock, self._numbers):
                updates, stats = _parse_steps(self._answer_pings(messages))
                self._notify(self._on_step, updates)
                self._response_threads.deliver(updates)
                if stats is not None:
                    self._notify(self._on_stats, stats)
        except ConnectionResetError:
            # The worker exited before reading all messages.
            pass
        except (OSError, ProtocolError) as error:
            write_log("E", f"the connection to the engine worker failed: {error}")
            if isinstance(error, ProtocolError):
                failure = f"the connection to the engine worker failed ({error})"
        with self._lock:
            self._sock = None
        # Do not close the socket while a thread is sending. Otherwise, a new socket could get the
        # same file descriptor, and the thread would write its frame to the new socket.
        with self._sending:
            sock.close()
        return failure

    def _answer_pings(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answer the pings in `messages` and return the other messages."""
        others = [message for message in messages if message.get("is") != "ping"]
        with contextlib.suppress(WorkerFailed):
            for _ in range(len(messages) - len(others)):
                self._send({"do": "pong"})
        return others

    def _deliver(self, update: SequenceUpdate) -> None:
        with self._lock:
            handler = self._handlers.get(update.request_id)
        if handler is not None:
            self._call(handler, update)

    def _fail_all(self, why: str) -> None:
        with self._lock:
            handlers, self._handlers = self._handlers, {}
        for request_id, handler in handlers.items():
            self._call(handler, SequenceUpdate(request_id, error=why))

    def _notify(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception:  # an error in a callback must not stop the responses
            write_traceback()

    def _call(self, handler: OnUpdate, update: SequenceUpdate) -> None:
        try:
            handler(update)
        except Exception:  # an error in one request must not affect other requests
            write_traceback()
            self.cancel(update.request_id)


def _parse_steps(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[SequenceUpdate], EngineStats | None]:
    """Return the updates of all steps, merged per sequence, and the latest statistics.

    The statistics are None if no step contains any. Raise `ProtocolError` if a message is not a
    step. The updates of an invalid message are lost, so the connection cannot continue.
    """
    try:
        entries = [entry for message in messages for entry in message["updates"]]
        updates = merge_updates(map(SequenceUpdate.from_wire, entries))
        stats = [message["stats"] for message in messages if "stats" in message]
        return updates, EngineStats(**stats[-1]) if stats else None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a message is not a step: {type(error).__name__}: {error}") from error


def _parse_ready(message: Mapping[str, Any]) -> tuple[EngineLimits, bool, int]:
    """Return the engine's limits and two settings of the model that started the worker.

    The settings are whether responses exclude the prompt by default, and the number of engines.
    Raise `ProtocolError` if the message is invalid.
    """
    try:
        limits, settings = EngineLimits(**message["limits"]), message["for_guests"]
        return limits, bool(settings.get("excludes_input")), int(settings.get("num_engines", 1))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ProtocolError(f"the first message is not valid: {why}") from error


class SharedWorkerClient(WorkerLink):
    """A connection to a worker started by another model or instance on this server.

    `name` is the name of the worker's socket, as returned by `worker_socket_name`. If the
    connection ends, a thread reconnects as soon as the worker is running again. Two attributes are
    set when the client connects: `excludes_input` is true if the worker's model excludes prompts
    from responses by default, and `num_engines` is the model's number of engines.
    """

    def __init__(
        self,
        name: str,
        on_step: OnStep = lambda updates: None,
        reconnect_s: float = _RECONNECT_S,
        ids: Iterator[int] | None = None,
    ) -> None:
        super().__init__(on_step=on_step, ids=ids)
        self._name = name
        self._reconnect_s = reconnect_s
        self.excludes_input = False
        self.num_engines = 1
        # True if a worker has ever been connected. Before the first connection, text models such as
        # `ensemble` send requests through Triton (Business Logic Scripting). Afterwards, requests
        # fail while the worker restarts.
        self.was_open = False
        # The socket of a worker that is still loading its engine.
        self._loading: socket.socket | None = None
        # The error of the last worker that could not load its engine, or an empty string.
        self._why_failed = ""
        self._thread = threading.Thread(target=self._keep_connected, daemon=True)
        self._thread.start()

    def wait_until_open(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Wait until a worker has loaded its engine. The loading time is not limited.

        If the worker could not load its engine, or if no worker has listened for `timeout_s`
        seconds, close this client and raise `WorkerFailed`.
        """
        last_seen_s = time.monotonic()
        while not self.is_open:
            now_s = time.monotonic()
            if self._why_failed:
                self.close()
                raise WorkerFailed(f"the engine worker did not start: {self._why_failed}")
            if self._loading is not None:
                last_seen_s = now_s
            elif now_s - last_seen_s > timeout_s:
                self.close()
                raise WorkerFailed(
                    "the engine worker of the first instance did not start; see the server log for "
                    "the reason"
                )
            self._closing.wait(_RECONNECT_S / 4)

    def close(self) -> None:
        """Close the connection and stop reconnecting. Requests in flight fail."""
        with self._lock, contextlib.suppress(OSError):
            self._closing.set()
            if (sock := self._sock or self._loading) is not None:
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _keep_connected(self) -> None:
        while not self._closing.is_set():
            if self._connect():
                failure = self._read_until_closed()
                why = failure or "the engine worker died and is being restarted"
                self._fail_all(f"{why}; retry the request")
            self._closing.wait(self._reconnect_s)
        self._response_threads.close()

    def _connect(self) -> bool:
        try:
            sock = connect(self._name, _CONNECT_TIMEOUT_S)
        except OSError:
            return False
        sock.settimeout(None)
        numbers = FrameNumbers()
        ready = None
        try:
            message = self._read_first(sock, numbers) or {}
            if message.get("is") == "failed":
                self._why_failed = str(message.get("why"))
            elif message.get("is") == "ready":
                ready = _parse_ready(message)
        except OSError:
            pass
        except ProtocolError as error:
            write_log("E", f"the connection to the engine worker failed: {error}")
        with self._lock:
            self._loading = None
            if ready is not None and not self._closing.is_set():
                self.limits, self.excludes_input, self.num_engines = ready
                self._numbers, self._sock = numbers, sock
                self.was_open = True
                return True
        sock.close()
        return False

    def _read_first(self, sock: socket.socket, numbers: FrameNumbers) -> dict[str, Any] | None:
        """Return the worker's first message, or None if either side closes the connection first."""
        with self._lock:
            if self._closing.is_set():
                return None
            self._loading = sock
        return read_frame(sock, numbers)


def worker_socket_name(model_name: str, engine: int = 0, *, triton_pid: int | None = None) -> str:
    """Return the name of the abstract socket on which a worker of this model listens.

    `engine` is the index of the worker's engine. The name is unique to the Triton process
    `triton_pid`, by default the parent process. Raise `OSError` if the process does not exist.
    """
    # Hash the names, because the length of a socket name is limited. A model's name contains no
    # slash. The only engine of a model has no index in the name, as in earlier versions.
    names = f"{identify_server(triton_pid)} {model_name}" + (f"/{engine}" if engine else "")
    return "tllm-guests-" + hashlib.sha256(names.encode()).hexdigest()
