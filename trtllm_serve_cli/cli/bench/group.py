"""`tllm bench` as the other commands see it: its own are set up only for those who ask for one.

They are two dozen with as many options each, and took longer to set up than all others together.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import typer

bench_app = typer.Typer(
    no_args_is_help=True,
    help="Load running servers and measure them.\n\n"
    "Example:  tllm bench token-norm-dist --request-rate 5 --stream",
)


def set_up_if_wanted() -> None:
    """Add the commands when the command line, or a shell that completes one, is about them."""
    if sys.argv[1:2] == ["bench"] or "_TLLM_COMPLETE" in os.environ:
        import_module("trtllm_serve_cli.cli.bench.workload_commands")
