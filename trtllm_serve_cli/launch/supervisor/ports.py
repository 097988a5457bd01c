"""Check whether ports are free and find the processes that use them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from types import MappingProxyType

import psutil

from trtllm_serve_cli.errors import BadInput, LaunchFailed


def check_ports(
    host: str,
    ports: Mapping[str, int],
    reserved: Mapping[int, str] = MappingProxyType({}),
    *,
    host_option: str = "--host",
    port_option: str | None = None,
) -> None:
    """Raise `LaunchFailed` if one of `ports` is in use or reserved.

    `ports` maps names to port numbers. `reserved` maps port numbers to descriptions of the servers
    that will listen on the ports. The error names the process, if known, or the server.

    Raise `BadInput` if an address cannot be bound for another reason. For example, `host` may not
    be an address of this machine, or the port may require root privileges.

    `host_option` and `port_option` are the options that the error suggests. By default, the port
    option is derived from the first word of the port name, for example --grpc-port from "gRPC of
    rank 1".
    """
    for what, port in ports.items():
        option = port_option or f"--{what.split()[0].lower()}-port"
        error = try_to_listen(host, port)
        if error is None and port not in reserved:
            continue
        if error is None:
            raise LaunchFailed(
                f"The {what} port {port} is reserved.",
                why=f"{reserved[port]} will listen on this port",
                next_step=f"choose another port with {option} N",
            )
        if error.errno != errno.EADDRINUSE:
            raise BadInput(
                f"The server cannot listen on {host}:{port}.",
                why=error.strerror or str(error),
                next_step=f"choose a port from 1024 to 65535 with {option} N"
                if error.errno in (errno.EACCES, errno.EINVAL)
                else f"pass an address of this machine with {host_option} ADDRESS",
            )
        raise LaunchFailed(
            f"The {what} port {port} is in use.",
            why=f"{find_holder(port) or 'another process'} is listening on this port",
            next_step="stop the process (with `tllm stop` if it is a tllm server), or choose "
            f"another port with {option} N",
        )


def find_holder(port: int) -> str | None:
    """Return the process that listens on a TCP port, as "name (pid N)".

    Return "process N" if the process name cannot be read, or None if no process is found.
    """
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
                return f"process {connection.pid}"
    return None


def try_to_listen(host: str, port: int) -> OSError | None:
    """Try to bind the port. Return the error, or None if the port is free."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # Like Triton, ignore connections in the TIME_WAIT state.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
        except OverflowError:
            return OSError(errno.EINVAL, "port numbers range from 0 to 65535")
    return None
