"""Use an imported model as another model's draft model for speculative decoding."""

from __future__ import annotations

import dataclasses

from trtllm_serve_cli.engine_kinds.registry import AUTO, find_kind, kind_names
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.importing.declaration import Declaration, override
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.store import load_model


def with_draft_model(declaration: Declaration, name: str, home: Home) -> Declaration:
    """Return the declaration with the engine of the imported model `name` as its draft engine.

    If the declared engine kind is "auto", use the draft model's engine kind. Raise `UnknownModel`
    if `name` is not imported, or `RepositoryError` if its manifest cannot be read. Raise `BadInput`
    if engines of the draft model's kind cannot be draft engines, or if this kind differs from the
    declared engine kind.
    """
    draft = load_model(home, name)
    parameter = find_kind(draft.engine_kind).serving.draft_parameter
    if not parameter:
        kinds = [kind for kind in kind_names() if find_kind(kind).serving.draft_parameter]
        raise BadInput(
            f"{name} cannot be a draft model.",
            why=f"the engine kind of {name} is {draft.engine_kind}, but only "
            f"{' and '.join(kinds)} engines can be draft models",
            next_step=f"import {name} again with `tllm import -m {name} --engine {kinds[0]}`",
        )
    declaration = override(
        declaration, {"repository": {"parameters": {parameter: str(draft.engine_path)}}}
    )
    requested = declaration.engine.kind
    if requested == AUTO:
        engine = dataclasses.replace(declaration.engine, kind=draft.engine_kind)
        return dataclasses.replace(declaration, engine=engine)
    if requested != draft.engine_kind:
        raise BadInput(
            f"{name} cannot be the draft model of {declaration.model.name}.",
            why=f"both models must use the same engine kind, but {name} uses {draft.engine_kind} "
            f"and --engine requests {requested}",
            next_step=f"import {name} again with `tllm import -m {name} --engine {requested}`, or "
            f"pass --engine {draft.engine_kind} for {declaration.model.name}",
        )
    return declaration
