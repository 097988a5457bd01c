"""Run a gateway until it receives SIGTERM.

python -m trtllm_serve_cli.gateway CONFIG
"""

from __future__ import annotations

import sys
from pathlib import Path

from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.gateway.server import serve


def main() -> None:
    """Serve the configuration in the file that is passed as the first argument."""
    serve(GatewayConfig.from_json(Path(sys.argv[1]).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
