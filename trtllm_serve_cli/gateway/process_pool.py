"""Run several gateway processes on one port.

Each process binds the port with SO_REUSEPORT, so the kernel distributes the connections among the
processes. The parent process does not serve requests. It reserves the port and starts, restarts and
stops the other processes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead

from trtllm_serve_cli.gateway.access.usage import UsageTable
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.gateway.door.client_ids import ClientIds
from trtllm_serve_cli.gateway.telemetry.metrics import MULTIPROCESS_FOLDER
from trtllm_serve_cli.processes import die_with_parent
from trtllm_serve_cli.runtime.pulse import PulseFile, PulseWriter, register_stacks_signal
from trtllm_serve_cli.stop_signal import StopSignal

# The option of `python -m trtllm_serve_cli.gateway` that starts one process of the pool.
MEMBER_OPTION = "--member"
_USAGE_FILE = "key-usage"
_CLIENT_IDS_FILE = "client-ids"
_POLL_S = 0.2
_RESTART_DELAY_S = 1.0
# If a process exits within this many seconds after its start, it has failed to start, for example
# because its configuration is invalid.
_STARTED_AFTER_S = 5.0
# Seconds to wait for the processes to exit, in addition to `drain_s` for requests in flight.
_EXIT_S = 5.0


def serve_as_configured(config: GatewayConfig) -> int:
    """Serve with `config.num_processes` processes until SIGTERM or SIGINT.

    Return the exit code.
    """
    if config.num_processes > 1:
        return serve_processes(config)
    # Import the server only here: the pool's parent process does not need it, and the import takes
    # 60 MB of memory.
    from trtllm_serve_cli.gateway.server import serve

    serve(config)
    return 0


def bind_shared(config: GatewayConfig) -> socket.socket:
    """Bind the gateway's port so that other gateway processes can bind it too.

    Raise `OSError` if the port cannot be bound.
    """
    found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def open_usage(config: GatewayConfig, process_index: int) -> UsageTable:
    """Open the per-key usage table that the processes share.

    The table is a file in the folder set by the environment variable PROMETHEUS_MULTIPROC_DIR.
    """
    file = Path(os.environ[MULTIPROCESS_FOLDER]) / _USAGE_FILE
    return UsageTable(file, process_index, config.num_processes)


def open_client_ids() -> ClientIds:
    """Open the ids of requests that the processes share, in the same folder."""
    return ClientIds(Path(os.environ[MULTIPROCESS_FOLDER]) / _CLIENT_IDS_FILE)


def serve_processes(config: GatewayConfig) -> int:
    """Run `config.num_processes` processes until SIGTERM or SIGINT. Return the exit code.

    Restart processes that die. If a process fails to start, stop all processes and return the exit
    code of the failed process, or 1 if this code is not positive. Raise `OSError` if the port
    cannot be bound.
    """
    stopping = StopSignal()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    # This socket reserves the port while processes are restarted. It does not listen, so it never
    # receives connections.
    with bind_shared(config), _shared_folder(config) as folder:
        pulse_file = PulseFile("gateway", "pool")
        pulse = PulseWriter(pulse_file.path)
        register_stacks_signal()
        pool = [Member(config, folder, index) for index in range(config.num_processes)]
        try:
            while not stopping.wait(_POLL_S):
                pulse.beat()
                for member in pool:
                    if (code := member.restart_if_dead()) is not None:
                        return code
            return 0
        finally:
            pulse_file.close()
            _stop_all(pool, config.drain_s + _EXIT_S)


class Member:
    """A process of the pool.

    The processes share the files in `folder`. `clock` returns the time in seconds.
    """

    def __init__(
        self,
        config: GatewayConfig,
        folder: Path,
        index: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._index = index
        self._config = config
        self._folder = folder
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            (sys.executable, "-m", "trtllm_serve_cli.gateway", MEMBER_OPTION, str(self._index)),
            stdin=subprocess.PIPE,
            env={**os.environ, MULTIPROCESS_FOLDER: str(self._folder)},
            preexec_fn=functools.partial(die_with_parent, signal.SIGTERM),
        )
        assert self.process.stdin is not None
        # Pass the configuration through a pipe, because it contains the secret `supervisor_token`
        # and other users can read command lines.
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(self._config.to_json().encode())
        self._started_s = self._clock()
        self._ended_s: float | None = None

    def restart_if_dead(self) -> int | None:
        """Restart the process if it died more than `_RESTART_DELAY_S` seconds ago.

        If the process failed to start, do not restart it but return its exit code, or 1 if the code
        is not positive. Otherwise, return None.
        """
        code = self.process.poll()
        if code is None:
            return None
        now_s = self._clock()
        if self._ended_s is None:
            if now_s - self._started_s < _STARTED_AFTER_S:
                return code if code > 0 else 1
            self._ended_s = now_s
            mark_process_dead(self.process.pid, str(self._folder))  # type: ignore[no-untyped-call]
            message = f"Gateway process {self.process.pid} ended with exit code {code}; restarting."
            print(message, file=sys.stderr, flush=True)
        if now_s - self._ended_s > _RESTART_DELAY_S:
            self._start()
        return None


def _stop_all(pool: list[Member], timeout_s: float) -> None:
    """Send SIGTERM to the processes, so that they finish their requests and exit.

    Kill the processes that are still running after `timeout_s` seconds.
    """
    for member in pool:
        member.process.terminate()
    deadline_s = time.monotonic() + timeout_s
    for member in pool:
        try:
            member.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()


@contextlib.contextmanager
def _shared_folder(config: GatewayConfig) -> Iterator[Path]:
    """Yield an empty folder in which the processes share metrics and per-key usage.

    If the server has a state folder, use a subfolder, because the state folder is removed even if
    the gateway is killed. Otherwise, use a temporary folder.
    """
    if config.server_directory is None:
        with tempfile.TemporaryDirectory(prefix="tllm-gateway-") as temporary:
            yield Path(temporary)
        return
    folder = Path(config.server_directory) / "gateway-metrics"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
