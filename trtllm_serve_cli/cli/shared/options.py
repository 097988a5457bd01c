"""Options that several commands share: one wording everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from trtllm_serve_cli.option_fields import Option

ModelOption = Annotated[
    str | None,
    typer.Option("-m", "--model", metavar="NAME", help="The model, by its name in `tllm list`."),
]
_JSON = "Print the same data as JSON, and nothing else, on stdout."
JsonOption = Annotated[bool, typer.Option("--json", help=_JSON)]
# The same, in an options class.
AsJson = Annotated[bool, Option(_JSON, flags=("--json",))]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Do it anew, in place of what is there.")
]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
