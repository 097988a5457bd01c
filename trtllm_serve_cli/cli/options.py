"""Options that several commands share: one wording everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

ModelOption = Annotated[
    str | None,
    typer.Option("-m", "--model", metavar="NAME", help="The model, by its name in `tllm list`."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the same data as JSON, and nothing else, on stdout.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")
]
