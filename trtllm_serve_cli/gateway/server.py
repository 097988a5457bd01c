"""Run the gateway's HTTP server in this process."""

from __future__ import annotations

import socket
import sys

import uvicorn

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.access.http_connection import limit_connections
from trtllm_serve_cli.gateway.access.usage import UsageTable
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.gateway.door.client_ids import ClientIds
from trtllm_serve_cli.gateway.telemetry.access_log import AccessLog
from trtllm_serve_cli.processes import raise_open_file_limit

_STARTUP_FAILED = 3


def serve(
    config: GatewayConfig,
    listener: socket.socket | None = None,
    usage: UsageTable | None = None,
    client_ids: ClientIds | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests in flight.

    Requests that are still running after `config.drain_s` seconds are cancelled.

    `listener` is a socket that is already bound to the gateway's port. If it is None, bind a new
    socket. `usage` and `client_ids` are those that the gateway's processes share, or None for a
    single process. If the server cannot start, exit with a nonzero code. Raise `BadInput` if the
    TLS certificate or key cannot be used.
    """
    if warning := describe_open_file_limit(config, raise_open_file_limit()):
        AccessLog(config.log_format).record_warning(warning)
    settings = uvicorn.Config(
        build_app(config, usage=usage, client_ids=client_ids),
        host=config.host,
        port=config.port,
        http=limit_connections(config.max_header_bytes, config.receive_timeout_s),
        loop="uvloop",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        ssl_certfile=config.tls_certificate,
        ssl_keyfile=config.tls_key,
        timeout_graceful_shutdown=int(config.drain_s),
    )
    try:
        settings.load()
    except OSError as error:  # also the class of the errors of OpenSSL
        raise BadInput(
            "The gateway cannot load its TLS certificate.",
            why=f"{config.tls_certificate} or {config.tls_key} cannot be used: "
            f"{error.strerror or error}",
            next_step="replace the files with a valid certificate and its private key",
        ) from error
    server = uvicorn.Server(settings)
    server.run(sockets=None if listener is None else [listener])
    if not server.started:
        sys.exit(_STARTUP_FAILED)


def describe_open_file_limit(config: GatewayConfig, limit: int) -> str:
    """Return a warning if `limit`, the maximum number of open files per process, is too low.

    Otherwise, return "".
    """
    if limit >= config.num_open_files:
        return ""
    return (
        f"The open file limit is {limit}, but {config.num_open_files} open files are required for "
        f"{config.max_in_flight // config.num_processes} running and "
        f"{config.max_waiting // config.num_processes} queued requests per process. Raise the hard "
        "limit (`ulimit -Hn`), or lower --openai-max-in-flight and --openai-max-waiting."
    )
