"""Run a command of `tllm`, and report errors as messages and exit codes.

A command's module is imported when the command runs. The command's function imports the modules
that do the work, so that `tllm --help` and usage errors are printed without a delay.
"""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from trtllm_serve_cli import __version__
from trtllm_serve_cli.cli.command_groups import LazyGroup
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.exits import USER_CAN_FIX
from trtllm_serve_cli.errors import TllmError

# Error codes of disk errors that the user can fix. `main` treats an `OSError` with any other error
# code as a bug.
_DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
)

app = typer.Typer(
    name="tllm",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        print(f"tllm {__version__}")
        raise typer.Exit


@app.callback()
def tllm(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Import, serve and benchmark language models on Triton Inference Server.

    Quick start:  tllm import -m demo && tllm start && tllm infer "What is ML?"
    """


def _describe_disk_error(error: OSError) -> TllmError:
    where = f" ({error.filename})" if error.filename else ""
    return TllmError(
        f"A file could not be read or written{where}.",
        why=error.strerror or str(error),
        next_step="free disk space, fix the permissions, or set TLLM_HOME to another folder",
    )


def main() -> None:
    """Run `tllm` and exit.

    The exit code is 0 for success, 1 for a bug in tllm, 2 for wrong usage, 3 for an error that the
    user can fix, and 130 for an interrupt.
    """
    try:
        app()
    except TllmError as error:
        output.show_error(error)
        sys.exit(USER_CAN_FIX)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        output.show_error(_describe_disk_error(error))
        sys.exit(USER_CAN_FIX)


if __name__ == "__main__":
    main()
