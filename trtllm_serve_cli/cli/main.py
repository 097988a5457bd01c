"""The `tllm` command: collects the commands and turns errors into sentences and exit codes.

Modules in this folder import Typer, the standard library and `errors` when they load; a command
imports its stage inside its body, so that `tllm --help` stays quick.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trtllm_serve_cli import __version__
from trtllm_serve_cli.cli import output
from trtllm_serve_cli.errors import TllmError

USER_CAN_FIX = 3
INTERRUPTED = 130

app = typer.Typer(
    name="tllm",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tllm {__version__}")
        raise typer.Exit


@app.callback()
def tllm(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take a language model from a checkpoint to a running, measured Triton server.

    Try it:  tllm import -m demo && tllm start && tllm infer "What is ML?"
    """


def main() -> None:
    """Run `tllm`; the exit codes are 0 done, 1 a bug, 2 wrong usage, 3 yours to fix, 130 stopped."""
    try:
        app()
    except TllmError as error:
        output.show_error(error)
        sys.exit(USER_CAN_FIX)
    except KeyboardInterrupt:
        output.say("Interrupted.")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output left (`tllm list | head`): nothing is wrong.
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
