"""Read a copy of NVIDIA's inflight_batcher_llm in which the template variables are filled in."""

from __future__ import annotations

import shlex
from pathlib import Path

from trtllm_serve_cli.errors import RepositoryError
from trtllm_serve_cli.repository.model.model_repository import (
    OpenRepository,
    open_repository,
    unfilled,
)
from trtllm_serve_cli.repository.model.store import MANIFEST, ImportedModel, read_manifest

_CORE = "tensorrt_llm"
# The models in NVIDIA's repository that accept text, in order of preference.
_TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")


def read_repository(directory: Path) -> ImportedModel:
    """Return the model in a repository that tllm rendered, or in a copy of NVIDIA's repository.

    The model in a copy is named after the copy's folder. Raise `RepositoryError` if `directory` is
    neither kind of repository, or if template variables in a copy are not filled in.
    """
    if (directory / MANIFEST).exists():
        return read_manifest(directory)
    copy = open_repository(directory)
    if _CORE not in copy.texts or copy.value(_CORE, "backend") not in ("", "tensorrtllm"):
        raise RepositoryError(
            f"{directory} is neither a tllm model repository nor a copy of NVIDIA's "
            "inflight_batcher_llm.",
            why=f"the folder contains neither a {MANIFEST} file nor a {_CORE} model that uses the "
            "tensorrtllm backend",
            next_step="to serve this repository without tllm, run "
            f"`tritonserver --model-repository={shlex.quote(str(directory))}`",
        )
    return _describe_copy(copy)


def _describe_copy(copy: OpenRepository) -> ImportedModel:
    engine_dir = copy.value(_CORE, "parameters.gpt_model_path")
    bare = [each for model in copy.texts for each in unfilled(copy, model) if not each.is_quoted]
    if bare or not engine_dir or not copy.value(_CORE, "backend"):
        raise RepositoryError(
            f"The templates in {copy.path} are not filled in.",
            why="Triton cannot load a model until its ${…} variables have values",
            next_step=f"run `tllm validate {copy.target}` to list the variables to set",
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
