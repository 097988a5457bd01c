"""Run a gateway until it receives SIGTERM or SIGINT.

python -m trtllm_serve_cli.gateway CONFIG           read the configuration from the file CONFIG, and
                                                    serve with one or more processes
python -m trtllm_serve_cli.gateway --member INDEX   read the configuration from standard input, and
                                                    serve as process INDEX of the pool
"""

from __future__ import annotations

import sys
from pathlib import Path

from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.gateway.process_pool import (
    MEMBER_OPTION,
    bind_shared,
    open_usage,
    serve_as_configured,
)


def main() -> None:
    """Read the configuration and serve. With `--member`, serve as one process of the pool."""
    if sys.argv[1] == MEMBER_OPTION:
        from trtllm_serve_cli.gateway.server import serve

        config = GatewayConfig.from_json(sys.stdin.read())
        serve(config, bind_shared(config), open_usage(config, int(sys.argv[2])))
        return
    config = GatewayConfig.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.exit(serve_as_configured(config))


if __name__ == "__main__":
    main()
