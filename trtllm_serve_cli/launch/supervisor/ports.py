"""Whether a port can be had, and who holds it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from types import MappingProxyType

import psutil

from trtllm_serve_cli.errors import BadInput, LaunchFailed


def check_ports(
    host: str, ports: Mapping[str, int], reserved: Mapping[int, str] = MappingProxyType({})
) -> None:
    """Raise `LaunchFailed`, naming the holder, if one of `ports` (what for -> number) is taken.

    What it is for starts with the word of the option that chooses it: "gRPC", "gRPC of rank 1".
    Those `reserved` (number -> to whom) will be taken.

    Raises `BadInput` where nobody may listen at all, such as on another machine's address.
    """
    for what, port in ports.items():
        option = f"--{what.split()[0].lower()}-port"
        error = try_to_listen(host, port)
        if error is None and port not in reserved:
            continue
        if error is None:
            raise LaunchFailed(
                f"The {what} port {port} is promised.",
                why=f"{reserved[port]} will listen on it",
                next_step=f"choose another: {option} N",
            )
        if error.errno != errno.EADDRINUSE:
            raise BadInput(
                f"The server cannot listen on {host}, port {port}.",
                why=error.strerror or str(error),
                next_step=f"leave --host out, or choose another port: {option} N",
            )
        raise LaunchFailed(
            f"The {what} port {port} is in use.",
            why=f"{find_holder(port) or 'another process'} listens on it",
            next_step=f"stop it (if it is tllm's: tllm stop), or choose another: {option} N",
        )


def find_holder(port: int) -> str | None:
    """The process that listens on a TCP port, as "name (pid N)"; None when it cannot be seen."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return None
    for connection in connections:
        is_here = connection.laddr and connection.laddr.port == port
        if is_here and connection.status == psutil.CONN_LISTEN and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                return f"the process {connection.pid}"
    return None


def try_to_listen(host: str, port: int) -> OSError | None:
    """What the system says against listening there, None when it does not mind."""
    with socket.socket() as probe:
        # As Triton does, so that connections of a server just stopped do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
        except OverflowError:
            return OSError(errno.EINVAL, "a port is a number from 0 to 65535")
    return None
