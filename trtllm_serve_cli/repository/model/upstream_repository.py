"""Copies of upstream's own repository, which are served as they are once they are filled in."""

from __future__ import annotations

import shlex
from pathlib import Path

from trtllm_serve_cli.errors import RepositoryError
from trtllm_serve_cli.repository.model.model_repository import (
    OpenRepository,
    open_repository,
    unfilled,
)
from trtllm_serve_cli.repository.model.render import MANIFEST
from trtllm_serve_cli.repository.model.store import ImportedModel, read_manifest

_CORE = "tensorrt_llm"
# Upstream's models that take text, the one to ask first.
_TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")


def read_repository(directory: Path) -> ImportedModel:
    """What `directory` serves: a repository of ours, or a copy of upstream's that is filled in.

    A copy goes by its folder's name. Raises `RepositoryError`.
    """
    if (directory / MANIFEST).exists():
        return read_manifest(directory)
    copy = open_repository(directory)
    if _CORE not in copy.texts or copy.value(_CORE, "backend") not in ("", "tensorrtllm"):
        raise RepositoryError(
            f"{directory} is neither a model repository of tllm's nor a copy of upstream's.",
            why=f"it has no {MANIFEST}, and no {_CORE} of Triton's backend tensorrtllm",
            next_step="start a Triton that has what its models need: "
            f"tritonserver --model-repository={shlex.quote(str(directory))}",
        )
    return _describe_copy(copy)


def _describe_copy(copy: OpenRepository) -> ImportedModel:
    engine_dir = copy.value(_CORE, "parameters.gpt_model_path")
    bare = [each for model in copy.texts for each in unfilled(copy, model) if not each.is_quoted]
    if bare or not engine_dir or not copy.value(_CORE, "backend"):
        raise RepositoryError(
            f"The templates in {copy.path} are not filled in.",
            why="Triton takes no ${…} for a value",
            next_step=f"tllm validate {copy.target}, which says what to set",
        )
    first = [model for model in _TEXT_MODELS if model in copy.texts]
    return ImportedModel(
        name=copy.name,
        path=copy.path,
        layout=copy.layout,
        engine_kind=copy.kind,
        engine_path=Path(engine_dir),
        source=f"engine:{engine_dir}",
        fingerprint="",
        created_at=0,
        models=tuple(dict.fromkeys((*first, *copy.texts))),
    )
