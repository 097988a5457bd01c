"""Entry point for `tllm` and `python -m trtllm_serve_cli.cli`."""

from __future__ import annotations

import gc
import os
import signal

_INTERRUPTED = 130


def main() -> None:
    """Import the command line and run it.

    Ctrl-C during the import ends the process without a traceback.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:  # a shell script ignores SIGINT in its background jobs
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    from trtllm_serve_cli.cli.main import main as run

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    finally:
        # Python searches all objects for garbage when it exits. This would take about a tenth of a
        # command's CPU time, and the memory is freed anyway.
        gc.freeze()


if __name__ == "__main__":
    main()
