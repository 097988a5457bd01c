"""`tllm export`: the file that would make an imported model again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtllm_serve_cli.cli.models.parameters import open_named


def export(
    name: Annotated[
        str | None, typer.Argument(help="The model, by its name in `tllm list`.")
    ] = None,
    repo: Annotated[
        Path | None,
        typer.Option("--repo", metavar="DIR", help="An imported model's repository elsewhere."),
    ] = None,
) -> None:
    """Print the tllm.yaml that makes a model again.

    Its source is pinned to the very checkpoint, and what `tllm set` changed is in it.

    Example:  tllm export demo > tllm.yaml && tllm import -f tllm.yaml
    """
    from trtllm_serve_cli.importing.declaration import declare_model, render_declaration
    from trtllm_serve_cli.repository.model.store import read_manifest

    repository = open_named(name, repo)
    model = read_manifest(repository.path)
    print(render_declaration(declare_model(model, repository)), end="")
