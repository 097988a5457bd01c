"""`tllm export`: the file that would make an imported model again."""

from __future__ import annotations

from typing import Annotated

import typer


def export(
    name: Annotated[
        str | None, typer.Argument(help="The model, by its name in `tllm list`.")
    ] = None,
) -> None:
    """Print the tllm.yaml that makes a model again.

    Its source is pinned to the very checkpoint, and what `tllm set` changed is in it.

    Example:  tllm export demo > tllm.yaml && tllm import -f tllm.yaml
    """
    from trtllm_serve_cli.declaration import declare_model, render_declaration
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository import load_model, open_repository

    model = load_model(find_home(), name)
    print(render_declaration(declare_model(model, open_repository(model.path))), end="")
