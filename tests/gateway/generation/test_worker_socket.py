"""Find the sockets of engine workers whose servers run side by side, like MPI ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtllm_serve_cli.gateway.generation.worker_socket import find_worker_socket, has_triton

# Listens on the socket of a worker, and prints its name.
LISTEN = f"""
import os, socket, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from trtllm_serve_cli.runtime.worker.worker_link import worker_socket_name
name = worker_socket_name("m", triton_pid=os.getpid())
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("\\0" + name)
    listener.listen()
    print(name, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[str]]:
    """Run two processes named tritonserver on ports 8000 and 8003, and return their sockets."""
    program = tmp_path / "tritonserver"
    program.symlink_to(sys.executable)
    processes = [
        subprocess.Popen(
            (str(program), "-c", LISTEN, f"--http-port={port}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for port in (8000, 8003)
    ]
    (tmp_path / "state.json").write_text(json.dumps({"server_pid": os.getpid()}))
    yield [each.stdout.readline().strip() for each in processes if each.stdout is not None]
    for each in processes:
        each.communicate()


def test_port_selects_the_server(ranks: list[str], tmp_path: Path) -> None:
    assert find_worker_socket(tmp_path, "m") in ranks
    assert [find_worker_socket(tmp_path, "m", http_port=port) for port in (8000, 8003)] == ranks
    assert find_worker_socket(tmp_path, "m", http_port=8006) is None
    assert find_worker_socket(tmp_path, "m", 1) is None
    assert find_worker_socket(tmp_path, "other") is None
    assert find_worker_socket(tmp_path / "missing", "m") is None
    assert has_triton(tmp_path) and has_triton(tmp_path, 8003)
    assert not has_triton(tmp_path, 8006) and not has_triton(tmp_path / "missing")
