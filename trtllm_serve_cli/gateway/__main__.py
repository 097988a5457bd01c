"""Run a gateway until it receives SIGTERM or SIGINT.

python -m trtllm_serve_cli.gateway CONFIG           read the configuration from the file CONFIG, and
                                                    serve with one or more processes
python -m trtllm_serve_cli.gateway --member INDEX   read the configuration from standard input, and
                                                    serve as process INDEX of the pool
"""

from __future__ import annotations

import sys
from pathlib import Path

from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.gateway.config import GatewayConfig, read_config
from trtllm_serve_cli.gateway.process_pool import (
    MEMBER_OPTION,
    bind_shared,
    open_client_ids,
    open_usage,
    serve_as_configured,
)


def main() -> None:
    """Read the configuration and serve. With `--member`, serve as one process of the pool.

    If a file cannot be used, exit with a message.
    """
    try:
        _serve()
    except TllmError as error:
        sys.exit(f"Error: {error}")
    except OSError as error:
        what = "The gateway cannot use a file or an address."
        next_step = "check the free disk space, the file permissions and the address, then restart"
        sys.exit(f"Error: {TllmError(what, why=str(error), next_step=next_step)}")


def _serve() -> None:
    if sys.argv[1] == MEMBER_OPTION:
        from trtllm_serve_cli.gateway.server import serve

        config = GatewayConfig.from_json(sys.stdin.read())
        usage = open_usage(config, int(sys.argv[2]))
        serve(config, bind_shared(config), usage, open_client_ids())
        return
    config = read_config(Path(sys.argv[1]))
    sys.exit(serve_as_configured(config))


if __name__ == "__main__":
    main()
