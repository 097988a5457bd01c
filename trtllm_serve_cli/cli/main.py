"""Run a `tllm` command and report errors as messages and exit codes.

To print `tllm --help` and usage errors without delay, tllm imports a command's module only when the
command is used. The command's function then imports the modules that do the work.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Annotated

import typer

from trtllm_serve_cli import __version__
from trtllm_serve_cli.cli.command_groups import LazyGroup
from trtllm_serve_cli.cli.shared import output, streams
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED, PIPE_CLOSED, USER_CAN_FIX
from trtllm_serve_cli.errors import TllmError

_FREE_SPACE = "free disk space, or set TLLM_HOME to a folder on another disk"
_CHECK_DISK = "check the disk or network file system, or set TLLM_HOME to a folder on another disk"
_GET_ACCESS = "correct the permissions, or set TLLM_HOME to a folder that you can write to"
# Maps file system error codes to next steps. `_describe_os_error` also handles paths that are too
# long and a missing current folder. Any other `OSError` is treated as a bug in tllm.
_DISK_ERRORS = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EIO: _CHECK_DISK,
    errno.ESTALE: _CHECK_DISK,
    errno.EACCES: _GET_ACCESS,
    errno.EPERM: _GET_ACCESS,
    errno.EROFS: "set TLLM_HOME to a folder that you can write to",
    errno.ENOTDIR: "correct the path, because one of its parent folders is a file",
}
# Python represents bytes of paths and arguments that are not UTF-8 as surrogates.
_NOT_UTF_8 = TllmError(
    "A path or an argument is not valid UTF-8.",
    why="tllm records paths and values in UTF-8 files",
    next_step="rename the file or folder, or correct the argument or the environment variable",
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


def _describe_os_error(error: OSError) -> TllmError | None:
    """Return the error to show to the user, or None to treat `error` as a bug in tllm."""
    if error.errno == errno.ENOENT and not _has_working_folder():
        return TllmError(
            "The current folder no longer exists.",
            why="the folder was deleted after the shell entered it",
            next_step="change to an existing folder, for example with `cd ~`, then run the "
            "command again",
        )
    if error.errno == errno.ENAMETOOLONG:
        path = str(error.filename or "")
        reason = error.strerror or str(error)
        return TllmError(
            "The path or a file name in it is too long.",
            why=f"{path[:80]}… is {len(path)} characters long" if path else reason,
            next_step="shorten the path or the file name",
        )
    if error.errno not in _DISK_ERRORS:
        return None
    return TllmError(
        f"{error.filename or 'A file'} could not be read or written.",
        why=error.strerror or str(error),
        next_step=_DISK_ERRORS[error.errno],
    )


def _has_working_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _run() -> str | int | None:
    """Run the command and return the exit code.

    Raise `BrokenPipeError` if the reader of the output has closed the pipe.
    """
    try:
        app(prog_name="tllm")
    except SystemExit as left:
        # Click and Rich exit with 1 if they cannot write to a pipe.
        if isinstance(left.__context__, BrokenPipeError):
            raise left.__context__ from None
        return left.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except TllmError as error:
        output.show_error(error)
    except OSError as error:
        if (described := _describe_os_error(error)) is None:
            raise
        output.show_error(described)
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        output.show_error(_NOT_UTF_8)
    return USER_CAN_FIX


def main() -> None:
    """Run `tllm` and exit.

    `cli.shared.exits` defines the exit codes.
    """
    streams.replace_closed()
    streams.escape_unencodable()
    try:
        code = _run()
        streams.flush()
    except BrokenPipeError:
        streams.discard_unwritten()
        code = PIPE_CLOSED
    sys.exit(code)


if __name__ == "__main__":
    main()
