"""The engine worker: one engine in a process of its own, driven over a socket.

    python3 -m tllm_runtime.worker --engine openvino --fd 5 --config '{"engine_dir": ...}'

The main thread steps the engine; a reader thread turns frames into commands. The worker ends when
the socket closes, so it never outlives the Triton model that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from ..engine import (
    Engine,
    GenerationRequest,
    InvalidRequest,
    SequenceUpdate,
    check_request,
    fit_to_vocabulary,
    last_line,
)
from ..engines.kinds import find_kind
from ..log import write_log, write_traceback
from .inherited_fds import keep_from_children
from .protocol import ProtocolError, encode_frame, read_frame

# While idle, statistics go out this often, so that gauges fall back to zero after the last request.
IDLE_STATS_PERIOD_S = 0.5
# Ids of requests have 40 bits for each caller.
_CALLER_SHIFT = 40
_OWN_ID = (1 << _CALLER_SHIFT) - 1
# How long a guest may not read.
_PATIENCE_S = 5
_NAME_RETRY_S = 0.2


def load_engine(kind: str, config: dict[str, Any]) -> Engine:
    """Load an engine of this kind. Only its own module imports the engine's packages."""
    load = find_kind(kind).load
    if load is None:
        raise ValueError(f"a backend of Triton's own runs the engine kind {kind}")
    return load(config)


class _Caller:
    """One who sends requests: the model that started the worker, or a guest.

    Callers number their requests as they like; the engine knows them with the caller's number in
    the high bits.
    """

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        # Engine's id -> how many sequences have not ended.
        self.open: dict[int, int] = {}

    def engine_id(self, request_id: int) -> int:
        return self.number << _CALLER_SHIFT | request_id

    def send(self, message: dict[str, Any]) -> None:
        self.sock.sendall(encode_frame(message))


class Worker:
    """Serves one engine to the socket of its model until that closes.

    And to guests, who connect to `listener`: models that would rather have tokens from here than
    through their neighbour; `for_guests` is what they need to know of that one. Beyond `num_slots`
    requests, `max_queue_size` may wait (0: any number).
    """

    def __init__(
        self,
        engine: Engine,
        sock: socket.socket,
        *,
        listener: socket.socket | None = None,
        for_guests: Mapping[str, Any] = MappingProxyType({}),
        num_slots: int = 0,
        max_queue_size: int = 0,
        stats_period_s: float = 0.1,
    ) -> None:
        self._engine = engine
        self._host = _Caller(0, sock)
        self._callers = {0: self._host}
        self._listener = listener
        self._for_guests = dict(for_guests)
        self._num_slots = num_slots
        self._max_queue_size = max_queue_size
        self._stats_period_s = stats_period_s
        self._stats_due_s = 0.0
        # A caller and what it sent; None: it has gone.
        self._commands: queue.SimpleQueue[tuple[_Caller, dict[str, Any] | None]] = (
            queue.SimpleQueue()
        )

    def run(self) -> None:
        """Serve until the socket closes."""
        # A broken pipe says that the model is gone, and its requests with it.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._serve()

    def _serve(self) -> None:
        self._welcome(self._host)
        if self._listener is not None:
            threading.Thread(target=self.accept, args=(self._listener,), daemon=True).start()
        while True:
            was_resting = not self._engine.has_work()
            updates, is_open = self._take_commands()
            if not is_open:
                return
            if self._engine.has_work():
                if was_resting:
                    # The first step may take seconds, and who is about to stop it must see it.
                    self._stats_due_s = 0.0
                    self._tell(updates)
                    updates = []
                updates += self._step()
            self._tell(updates)

    def _step(self) -> list[SequenceUpdate]:
        """One step of the engine. What it raises ends the worker, and all are told before."""
        try:
            return self._engine.step()
        except Exception as error:
            why = (
                f"the engine failed ({type(error).__name__}: {last_line(error)}); it is being "
                "restarted, send the request again"
            )
            for caller in self._callers.values():
                told = [SequenceUpdate(each & _OWN_ID, error=why).to_wire() for each in caller.open]
                with contextlib.suppress(OSError):
                    caller.send({"is": "step", "updates": told})
            raise

    def _welcome(self, caller: _Caller) -> None:
        limits = _as_dict(self._engine.limits)
        caller.send({"is": "ready", "limits": limits, "for_guests": self._for_guests})
        threading.Thread(target=self._read_commands, args=(caller,), daemon=True).start()

    def accept(self, listener: socket.socket) -> None:
        """Take the guests who connect to `listener`, until it is closed."""
        for number in itertools.count(1):
            try:
                sock, _ = listener.accept()
            except OSError:  # closed
                return
            if not _is_ours(sock):
                sock.close()
                continue
            # One who does not read must not hold up the others.
            patience = struct.pack("ll", _PATIENCE_S, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
            self._commands.put((_Caller(number, sock), {"do": "join"}))

    def _read_commands(self, caller: _Caller) -> None:
        try:
            while (message := read_frame(caller.sock)) is not None:
                self._commands.put((caller, message))
        except (OSError, ProtocolError) as error:
            write_log("W", f"engine worker: a model's side broke off: {error}")
        self._commands.put((caller, None))

    def _take_commands(self) -> tuple[list[SequenceUpdate], bool]:
        """Carry out what is queued; waits for something only while the engine is idle."""
        updates: list[SequenceUpdate] = []
        try:
            if self._engine.has_work():
                caller, command = self._commands.get_nowait()
            else:
                caller, command = self._commands.get(timeout=IDLE_STATS_PERIOD_S)
            while command is not None or caller is not self._host:
                updates += self._obey(caller, command)
                caller, command = self._commands.get_nowait()
        except queue.Empty:
            return updates, True
        return updates, False

    def _obey(self, caller: _Caller, command: dict[str, Any] | None) -> list[SequenceUpdate]:
        if command is None:
            self._part(caller)
        elif command["do"] == "join":
            self._callers[caller.number] = caller
            self._guarded(caller, lambda: self._welcome(caller))
        elif caller.number in self._callers:
            return self._carry_out(caller, command)
        return []

    def _part(self, guest: _Caller) -> None:
        """A guest has gone, or is given up on: nobody wants its tokens."""
        if self._callers.pop(guest.number, None) is not None:
            for engine_id in guest.open:
                self._engine.cancel(engine_id)
            # Its reader may be in there, and closing alone would tell nobody.
            with contextlib.suppress(OSError):
                guest.sock.shutdown(socket.SHUT_RDWR)
            guest.sock.close()

    def _guarded(self, caller: _Caller, action: Callable[[], None]) -> None:
        """Do what may fail because a guest has gone; when the host has, that ends the worker."""
        try:
            action()
        except OSError:
            if caller is self._host:
                raise
            self._part(caller)

    def _carry_out(self, caller: _Caller, command: dict[str, Any]) -> list[SequenceUpdate]:
        if command["do"] == "cancel":
            engine_id = caller.engine_id(command["id"])
            caller.open.pop(engine_id, None)
            self._engine.cancel(engine_id)
            return []
        told = GenerationRequest.from_message(command["request"])
        request = replace(told, id=caller.engine_id(told.id))
        try:
            self._check_room()
            check_request(request, self._engine.limits)
            self._engine.submit(fit_to_vocabulary(request, self._engine.limits))
        except InvalidRequest as error:
            return [SequenceUpdate(request.id, error=str(error), refused=True)]
        except Exception as error:  # what one request makes an engine raise must not end the others
            write_traceback()
            why = f"the engine could not take the request: {type(error).__name__}: {error}"
            return [SequenceUpdate(request.id, error=why)]
        caller.open[request.id] = request.num_return_sequences
        return []

    def _check_room(self) -> None:
        """Raise `InvalidRequest` when as many requests wait as may (`max_queue_size`)."""
        num_in_flight = sum(len(caller.open) for caller in self._callers.values())
        if self._max_queue_size and num_in_flight >= self._num_slots + self._max_queue_size:
            # Upstream says it one way from Triton's queue, another from its own.
            raise InvalidRequest(
                f"Exceeds maximum queue size. Maximum queue size of {self._max_queue_size} has "
                "been reached, please try again later"
            )

    def _tell(self, updates: list[SequenceUpdate]) -> None:
        now_s = time.monotonic()
        # The last step before a rest tells at once that all slots are free.
        is_stats_due = now_s >= self._stats_due_s or not self._engine.has_work()
        if not updates and not is_stats_due:
            return
        entries: dict[int, list[list[Any]]] = {0: []}
        for update in updates:
            number = update.request_id >> _CALLER_SHIFT
            if (caller := self._callers.get(number)) is None:
                continue
            _note(caller.open, update)
            entry = update.to_wire()
            entry[0] &= _OWN_ID
            entries.setdefault(number, []).append(entry)
        for number, told in entries.items():
            message: dict[str, Any] = {"is": "step", "updates": told}
            if number == 0 and is_stats_due:
                message["stats"] = _as_dict(self._engine.stats())
                self._stats_due_s = now_s + self._stats_period_s
            if told or "stats" in message:
                caller = self._callers[number]
                self._guarded(caller, partial(caller.send, message))


def _note(open_sequences: dict[int, int], update: SequenceUpdate) -> None:
    """Count the sequences that have not ended."""
    if update.error is not None:
        open_sequences.pop(update.request_id, None)
    elif update.finish_reason is not None and update.request_id in open_sequences:
        open_sequences[update.request_id] -= 1
        if not open_sequences[update.request_id]:
            del open_sequences[update.request_id]


def _is_ours(sock: socket.socket) -> bool:
    """Whether who connected runs as the same user."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.getuid())


def _as_dict(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _listen(name: str) -> socket.socket | None:
    """Where guests may come, at a name that needs no file; nowhere while it is taken."""
    if not name:
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{name}")
        listener.listen()
    except OSError:
        listener.close()
        return None
    return listener


def _listen_later(name: str, worker: Worker) -> None:
    """While a model is loaded anew, the worker that it had has the name."""
    while (listener := _listen(name)) is None:
        time.sleep(_NAME_RETRY_S)
    worker.accept(listener)


def main(load: Callable[[str, dict[str, Any]], Engine] = load_engine) -> None:
    """Load the engine, say `ready` or why not, and serve the socket at `--fd`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--config", type=json.loads, required=True)
    arguments = parser.parse_args()
    sock = socket.socket(fileno=arguments.fd)
    guests = arguments.config.pop("guests", "")
    listener = _listen(guests)
    for_guests = arguments.config.pop("for_guests", {})
    keep_from_children(sock, *([listener] if listener else ()))
    try:
        engine = load(arguments.engine, arguments.config)
    except Exception as error:  # the engine's packages raise what they like; the model must know
        sock.sendall(encode_frame({"is": "failed", "why": last_line(error)}))
        raise
    worker = Worker(
        engine,
        sock,
        listener=listener,
        for_guests=for_guests,
        num_slots=int(arguments.config.get("max_batch_size", 0)),
        max_queue_size=int(arguments.config.get("max_queue_size", 0)),
    )
    if guests and listener is None:
        threading.Thread(target=_listen_later, args=(guests, worker), daemon=True).start()
    os._exit(_run_to_end(worker, engine, sock))


def _run_to_end(worker: Worker, engine: Engine, sock: socket.socket) -> int:
    """Run, and let go of all that would outlive this process; returns the exit code.

    Engines keep threads of their own, whose orderly end takes seconds and gains nothing.
    """
    code = 0
    try:
        worker.run()
    except Exception:  # the engine's, whose requests have been told
        write_traceback()
        code = 1
    # The model should know before what may take its time.
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    engine.close()
    sys.stderr.flush()
    return code
