"""`tllm export`: print the tllm.yaml of an imported model."""

from __future__ import annotations

from trtllm_serve_cli.cli.models.parameters import open_named
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.options import ImportedModelOption, JsonOption, RenderedRepoOption


@accepts_name("name")
def export(
    name: ImportedModelOption = None,
    repo: RenderedRepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a model as tllm.yaml.

    The source is pinned to the imported checkpoint. Changes made with `tllm set` are included.

    Example:  tllm export demo > tllm.yaml && tllm import -f tllm.yaml
    """
    from trtllm_serve_cli.importing.declaration import declare_model, render_declaration
    from trtllm_serve_cli.importing.unused_options import drop_unused
    from trtllm_serve_cli.repository.model.store import read_manifest
    from trtllm_serve_cli.sources.registry import parse_source
    from trtllm_serve_cli.yaml_schema import plain_changes

    repository = open_named(name, repo)
    model = read_manifest(repository.path)
    declared = declare_model(model, repository)
    declaration = drop_unused(declared, model.engine_kind, parse_source(model.source))
    if as_json:
        output.show_json(plain_changes(declaration))
    else:
        print(render_declaration(declaration), end="")
