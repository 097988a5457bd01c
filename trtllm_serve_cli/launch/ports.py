"""Who holds a port."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import psutil

from trtllm_serve_cli.errors import LaunchFailed


def check_ports(host: str, ports: Mapping[str, int]) -> None:
    """Raise `LaunchFailed`, naming the holder, if one of `ports` (what for -> number) is taken."""
    for what, port in ports.items():
        if _is_free(host, port):
            continue
        option = f"--{what.lower()}-port"
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


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As Triton does, so that connections of a server just stopped do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
