"""The engine worker: one engine in a process of its own, driven over a socket.

    python3 -m tllm_runtime.worker --engine openvino --fd 5 --config '{"engine_dir": ...}'

The main thread steps the engine; a reader thread turns frames into commands. The worker ends when
the socket closes, so it never outlives the Triton model that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from .engine import (
    Engine,
    GenerationRequest,
    InvalidRequest,
    SequenceUpdate,
    check_request,
    fit_to_vocabulary,
    last_line,
)
from .lora_engine import load_with_adapters
from .protocol import ProtocolError, encode_frame, read_frame

# While idle, statistics go out this often, so that gauges fall back to zero after the last request.
IDLE_STATS_PERIOD_S = 0.5


def load_engine(kind: str, config: dict[str, Any]) -> Engine:
    """The engine of this kind; its packages are imported only here."""
    if kind == "openvino":
        from .openvino_engine import OpenVinoEngine
        from .openvino_lora import site_finder

        return load_with_adapters(OpenVinoEngine, site_finder(config), config)
    raise ValueError(f"unknown engine kind {kind!r}")


class Worker:
    """Serves one engine to one socket until that closes."""

    def __init__(self, engine: Engine, sock: socket.socket, *, stats_period_s: float = 0.1) -> None:
        self._engine = engine
        self._sock = sock
        self._stats_period_s = stats_period_s
        self._stats_due_s = 0.0
        self._commands: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve until the socket closes."""
        # A broken pipe says that the model is gone, and its requests with it.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._serve()

    def _serve(self) -> None:
        self._send({"is": "ready", "limits": _as_dict(self._engine.limits)})
        threading.Thread(target=self._read_commands, daemon=True).start()
        while True:
            updates, is_open = self._take_commands()
            if not is_open:
                return
            if self._engine.has_work():
                updates += self._engine.step()
            self._tell(updates)

    def _read_commands(self) -> None:
        try:
            while (message := read_frame(self._sock)) is not None:
                self._commands.put(message)
        except (OSError, ProtocolError) as error:
            print(f"engine worker: the model's side broke off: {error}", file=sys.stderr)
        self._commands.put(None)

    def _take_commands(self) -> tuple[list[SequenceUpdate], bool]:
        """Carry out what is queued; waits for something only while the engine is idle."""
        updates: list[SequenceUpdate] = []
        try:
            if self._engine.has_work():
                command = self._commands.get_nowait()
            else:
                command = self._commands.get(timeout=IDLE_STATS_PERIOD_S)
            while command is not None:
                updates += self._carry_out(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            return updates, True
        return updates, False

    def _carry_out(self, command: dict[str, Any]) -> list[SequenceUpdate]:
        if command["do"] == "cancel":
            self._engine.cancel(command["id"])
            return []
        request = GenerationRequest.from_message(command["request"])
        try:
            check_request(request, self._engine.limits)
            self._engine.submit(fit_to_vocabulary(request, self._engine.limits))
        except InvalidRequest as error:
            return [SequenceUpdate(request.id, error=str(error))]
        except Exception as error:  # what one request makes an engine raise must not end the others
            traceback.print_exc()
            why = f"the engine could not take the request: {type(error).__name__}: {error}"
            return [SequenceUpdate(request.id, error=why)]
        return []

    def _tell(self, updates: list[SequenceUpdate]) -> None:
        now_s = time.monotonic()
        # The last step before a rest tells at once that all slots are free.
        is_stats_due = now_s >= self._stats_due_s or not self._engine.has_work()
        if not updates and not is_stats_due:
            return
        message: dict[str, Any] = {"is": "step", "updates": [each.to_wire() for each in updates]}
        if is_stats_due:
            message["stats"] = _as_dict(self._engine.stats())
            self._stats_due_s = now_s + self._stats_period_s
        self._send(message)

    def _send(self, message: dict[str, Any]) -> None:
        self._sock.sendall(encode_frame(message))


def _as_dict(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def main(load: Callable[[str, dict[str, Any]], Engine] = load_engine) -> None:
    """Load the engine, say `ready` or why not, and serve the socket at `--fd`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--config", type=json.loads, required=True)
    arguments = parser.parse_args()
    sock = socket.socket(fileno=arguments.fd)
    try:
        engine = load(arguments.engine, arguments.config)
    except Exception as error:  # the engine's packages raise what they like; the model must know
        sock.sendall(encode_frame({"is": "failed", "why": last_line(error)}))
        raise
    Worker(engine, sock).run()
    # Engines keep threads of their own, whose orderly end takes seconds and gains nothing.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
