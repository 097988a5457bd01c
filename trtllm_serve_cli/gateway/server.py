"""Run the gateway's HTTP server."""

from __future__ import annotations

import uvicorn

from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.gateway.http import KeepSend


def serve(config: GatewayConfig) -> None:
    """Serve until SIGTERM or SIGINT, and then finish the requests in flight."""
    uvicorn.run(
        KeepSend(build_app(config)),
        host=config.host,
        port=config.port,
        http="httptools",
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
