"""Plan the model repository of an import, before or after the engine is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.dispatch import load_engine
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.errors import BadInput, BuildFailed, SourceError
from trtllm_serve_cli.importing.import_plan import ImportPlan, serving_options
from trtllm_serve_cli.repository.model.model_config import RepositoryPlan
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.sizing.facts import read_checkpoint_facts


def plan_import_repository(
    plan: ImportPlan, engine: Engine, kept: Mapping[str, str]
) -> RepositoryPlan:
    """Plan the model repository for an engine.

    `kept` contains the settings from `tllm set` that the import keeps. Raise `BadInput` if the
    engine or the layout does not support an option.
    """
    options = dataclasses.replace(
        serving_options(plan.declaration),
        engine_python=plan.choice.python,
        host=plan.machine.host,
    )
    options = dataclasses.replace(options, parameters={**kept, **options.parameters})
    rendered = plan_repository(plan.declaration.model.name, engine, options)
    return dataclasses.replace(
        rendered,
        requested=tuple(name for name in rendered.requested if name not in kept),
        preserved={name: rendered.parameters[name] for name in kept},
    )


def preview_repository(plan: ImportPlan) -> RepositoryPlan | None:
    """Plan the model repository before the engine is built.

    If the engine does not exist yet, its sizes are estimated. Return None for embedding models, if
    the plan has no build, if the engine kind has no preview, or if the engine cannot be read or
    estimated. Raise `BadInput` if the engine or the layout does not support an option.
    """
    engine = _preview_engine(plan)
    return plan_import_repository(plan, engine, plan.preserved.kept) if engine else None


def _preview_engine(plan: ImportPlan) -> Engine | None:
    build, preview = plan.build, find_kind(plan.choice.kind).building.preview
    if build is None or preview is None or build.checkpoint.is_embedding_model:
        return None
    declaration = plan.declaration
    try:
        if plan.is_built:
            return load_engine(build.engine_dir)
        facts = read_checkpoint_facts(build.checkpoint)
        engine = preview(facts, build.checkpoint.format, declaration.build.quantization)
    except (BadInput, BuildFailed, SourceError):
        # The engine may support the model even if the preview cannot estimate the engine's sizes.
        return None
    return dataclasses.replace(engine, path=build.engine_dir, model_name=declaration.model.name)
