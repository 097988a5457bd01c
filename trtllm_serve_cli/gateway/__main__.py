"""Run a gateway until it receives SIGTERM.

python -m trtllm_serve_cli.gateway CONFIG
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn

from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig


def main() -> None:
    """Serve the configuration in the file that is passed as the first argument."""
    config = GatewayConfig.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    uvicorn.run(
        build_app(config),
        host=config.host,
        port=config.port,
        http="httptools",
        loop="uvloop",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        ssl_certfile=config.tls_certificate,
        ssl_keyfile=config.tls_key,
        timeout_graceful_shutdown=int(config.drain_s),
    )


if __name__ == "__main__":
    main()
