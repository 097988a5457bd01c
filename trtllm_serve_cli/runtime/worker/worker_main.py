"""Run an engine worker: a process that runs one engine and receives commands over a socket.

python3 -m tllm_runtime.worker --engine openvino --fd 5 --config '{"engine_dir": ...}'
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..engine import Engine, last_line
from ..engines.embedding_engine import load_embedding_engine
from ..engines.kinds import find_kind
from ..log import write_traceback
from ..pulse import PulseWriter, register_stacks_signal
from ..stages import StageTimer
from ..telemetry.traced_engine import trace_engine
from .abstract_socket import is_same_user
from .inherited_fds import close_in_children
from .protocol import FrameNumbers
from .worker import Worker

_NAME_RETRY_S = 0.2


def load_engine(
    name: str, config: dict[str, Any], on_imported: Callable[[], None] = lambda: None
) -> Engine:
    """Load an engine of the engine kind `name`.

    If the configuration contains `embedding`, the engine computes embeddings. Otherwise,
    `on_imported` is called after the engine kind's packages have been imported, if the kind defines
    `import_packages`. Raise `ValueError` if the kind is unknown or lacks the required engine.
    """
    if "embedding" in config:
        return load_embedding_engine(name, config)
    kind = find_kind(name)
    if kind.load is None:
        raise ValueError(
            f"the {name} engine kind has no engine worker, because it runs in a Triton backend"
        )
    if kind.import_packages is not None:
        kind.import_packages(config)
        on_imported()
    return kind.load(config)


def _listen(name: str) -> socket.socket | None:
    """Listen on the abstract socket `name`.

    Return None if the name is empty or cannot be bound, usually because it is in use.
    """
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


def _listen_when_free(name: str, worker: Worker) -> None:
    """Wait until the socket name `name` is free, then accept clients until the listener is closed.

    While Triton reloads a model, the previous worker still uses the name.
    """
    while (listener := _listen(name)) is None:
        time.sleep(_NAME_RETRY_S)
    worker.accept(listener)


def _send_to_waiting(listener: socket.socket, frame: bytes) -> None:
    """Send a frame to clients whose connections have not been accepted, and disconnect them.

    Clients that run as other users do not receive the frame.
    """
    listener.setblocking(False)
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                if is_same_user(client):
                    client.sendall(frame)


def main(
    load: Callable[[str, dict[str, Any], Callable[[], None]], Engine] = load_engine,
) -> None:
    """Load the engine, send `ready` or the error, and serve the socket `--fd`.

    Exit the process when the worker stops. If the engine cannot be loaded, reraise the exception.
    """
    stages = StageTimer()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--config", type=json.loads, required=True)
    arguments = parser.parse_args()
    sock = socket.socket(fileno=arguments.fd)
    socket_name = arguments.config.pop("guests", "")
    listener = _listen(socket_name)
    client_settings = arguments.config.pop("for_guests", {})
    register_stacks_signal()
    pulse_path = arguments.config.pop("pulse", "")
    close_in_children(sock, *([listener] if listener else ()))
    try:
        on_imported = partial(stages.end, "import_packages")
        engine = trace_engine(load(arguments.engine, arguments.config, on_imported))
        stages.end("load_engine")
    except Exception as error:  # an engine's packages may raise any type of exception
        failed = FrameNumbers().encode({"is": "failed", "why": last_line(error)})
        if listener is not None:
            _send_to_waiting(listener, failed)
        sock.sendall(failed)
        raise
    worker = Worker(
        engine,
        sock,
        listener=listener,
        client_settings=client_settings,
        num_slots=int(arguments.config.get("max_batch_size", 0)),
        max_queue_size=int(arguments.config.get("max_queue_size", 0)),
        pulse=PulseWriter(Path(pulse_path) if pulse_path else None),
        stages_s=stages.durations_s,
    )
    if socket_name and listener is None:
        threading.Thread(target=_listen_when_free, args=(socket_name, worker), daemon=True).start()
    os._exit(_run_and_close(worker, engine, sock))


def _run_and_close(worker: Worker, engine: Engine, sock: socket.socket) -> int:
    """Run the worker, close the engine, and return the exit code.

    `main` passes the exit code to `os._exit`, because a regular exit would wait several seconds for
    the engine's threads to end.
    """
    code = 0
    try:
        worker.run()
    except Exception:  # if the engine failed, `_step` has already failed all requests
        write_traceback()
        code = 1
    # Disconnect the model first, because closing the engine may take time.
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    engine.close()
    sys.stderr.flush()
    return code
