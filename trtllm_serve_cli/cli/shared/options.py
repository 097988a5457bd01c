"""Declare the options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtllm_serve_cli.option_fields import Option

ImportedModelOption = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="NAME",
        help="Model name, as shown by `tllm list`. Default: the only imported model.",
    ),
]
RenderedRepoOption = Annotated[
    Path | None,
    typer.Option("--repo", metavar="DIR", help="Model repository folder outside TLLM_HOME."),
]
ServedModelOption = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="NAME",
        help="Use the server that serves this model, as shown by `tllm status`. Default: the only "
        "running server.",
    ),
]
_JSON = "Print the result as JSON on stdout."
JsonOption = Annotated[bool, typer.Option("--json", help=_JSON)]
# The `--json` option, as the type of a field in an options class.
AsJson = Annotated[bool, Option(_JSON, flags=("--json",))]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan without executing it.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing output files.")]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="Skip the confirmation prompt.")]
