"""Find the socket of the engine worker that a supervised Triton server started."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import psutil

from trtllm_serve_cli.runtime.worker.worker_link import worker_socket_name

_SOCKETS = Path("/proc/net/unix")


def find_worker_socket(
    server_directory: Path, core_model: str, engine: int = 0, http_port: int | None = None
) -> str | None:
    """Return the name of the abstract socket that a worker of `core_model` listens on.

    Return None if the server is not running, or if the engine has no worker that accepts
    connections. `server_directory` is the server's state folder, and `engine` is the index of the
    worker's engine. If each MPI rank is a separate server, `http_port` selects the rank.
    """
    words = {line.rpartition(" ")[2] for line in _SOCKETS.read_text().splitlines()}
    for pid in _list_tritons(server_directory, http_port):
        with contextlib.suppress(OSError):
            name = worker_socket_name(core_model, engine, triton_pid=pid)
            if f"@{name}" in words:
                return name
    return None


def has_triton(server_directory: Path, http_port: int | None = None) -> bool:
    """Return whether the server has a `tritonserver` process whose workers can be found.

    The arguments are those of `find_worker_socket`. The processes of containers are not found.
    """
    return any(_list_tritons(server_directory, http_port))


def _list_tritons(server_directory: Path, http_port: int | None) -> Iterator[int]:
    """Yield the ids of the server's `tritonserver` processes.

    If `http_port` is set, yield only the process that serves HTTP on this port. The processes can
    be the server's first process or its descendants, for example MPI ranks.
    """
    try:
        pid = json.loads((server_directory / "state.json").read_text())["server_pid"]
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return
    for each in processes:
        with contextlib.suppress(psutil.Error):
            if each.name() != "tritonserver":
                continue
            if http_port is None or f"--http-port={http_port}" in each.cmdline():
                yield each.pid
