"""The `tllm` command: collects the commands and turns errors into sentences and exit codes.

Modules in this folder import Typer, the standard library and `errors` when they load; a command
imports its stage inside its body, so that `tllm --help` stays quick.
"""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from trtllm_serve_cli import __version__
from trtllm_serve_cli.cli.bench import group
from trtllm_serve_cli.cli.infer import infer_command
from trtllm_serve_cli.cli.metrics import metrics_command
from trtllm_serve_cli.cli.models import (
    export,
    import_command,
    imported_models,
    lora,
    parameters,
    plan_command,
)
from trtllm_serve_cli.cli.server import deploy, doctor, load, logs, restart, start, status, stop
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.exits import USER_CAN_FIX
from trtllm_serve_cli.errors import TllmError

# What the user's disk can refuse anywhere; everything else that the system says is a bug of ours.
_USERS_DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
)

app = typer.Typer(
    name="tllm",
    no_args_is_help=True,
    rich_markup_mode=None,
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


app.command("import")(import_command.import_model)
app.command("build")(import_command.build_model)
app.command("plan")(plan_command.plan)
app.command("list")(imported_models.list_models)
app.command("show")(parameters.show)
app.command("set")(parameters.set_)
app.command("validate")(parameters.validate)
app.command("export")(export.export)
app.command("remove")(imported_models.remove)
app.command("start")(start.start)
app.command("stop")(stop.stop)
app.command("restart")(restart.restart)
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("load")(load.load)
app.command("unload")(load.unload)
app.command("infer")(infer_command.infer)
app.add_typer(group.bench_app, name="bench")
app.add_typer(metrics_command.metrics_app, name="metrics")
app.add_typer(lora.lora_app, name="lora")
app.command("doctor")(doctor.doctor)
app.add_typer(deploy.deploy_app, name="deploy")


def _explain(error: OSError) -> TllmError:
    where = f" ({error.filename})" if error.filename else ""
    return TllmError(
        f"A file could not be written or read{where}.",
        why=error.strerror or str(error),
        next_step="free some space or mend the permissions, or point TLLM_HOME elsewhere",
    )


def main() -> None:
    """Run `tllm`; exit codes: 0 done, 1 a bug, 2 wrong usage, 3 yours to fix, 130 interrupted."""
    group.set_up_if_wanted()
    try:
        app()
    except TllmError as error:
        output.show_error(error)
        sys.exit(USER_CAN_FIX)
    except OSError as error:
        if error.errno not in _USERS_DISK:
            raise
        output.show_error(_explain(error))
        sys.exit(USER_CAN_FIX)


if __name__ == "__main__":
    main()
