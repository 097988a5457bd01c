"""Find the LoRA adapters to serve: configured adapters and adapters that engines prefetch."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from pathlib import Path

from trtllm_serve_cli.gateway.config import ServedAdapter
from trtllm_serve_cli.gateway.sampling import find_obstacle
from trtllm_serve_cli.gateway.served_model import LoadedModel
from trtllm_serve_cli.runtime.engines.kinds import find_kind, kind_names

_log = logging.getLogger(__name__)


def find_adapter_obstacle(model: LoadedModel) -> str | None:
    """Return why the model cannot use LoRA adapters from folders, or None if it can."""
    if model.info.embedding is not None:
        return "it computes embeddings"
    if (why := find_obstacle(model, "lora_name")) is not None:
        return why
    if not model.backend.accepts_adapters:
        return "its tensorrt_llm model in Triton has no inputs for LoRA adapters"
    return None


def configure_adapter(model: LoadedModel, adapter: ServedAdapter) -> LoadedModel:
    """Return a copy of the model that uses an adapter from the gateway's configuration.

    The adapter's name in the engine contains a hash of the folder path, so that it does not equal a
    name in `lora_prefetch_dir`. All gateway processes use the same name.
    """
    suffix = hashlib.sha256(adapter.folder.encode()).hexdigest()[:8]
    return model.with_adapter(
        adapter.name, lora_name=f"{adapter.name}-{suffix}", lora_folder=adapter.folder
    )


def find_prefetched(model: LoadedModel) -> list[LoadedModel]:
    """Return a model for each adapter that the engine of `model` loads at startup.

    Return [] if the model does not set `lora_prefetch_dir`, if the gateway cannot read this folder,
    or if the model cannot use LoRA adapters from folders.

    Engines with a worker select adapters by name. Triton's C++ backend selects adapters by task id,
    so the name of an adapter's folder must be the task id. Other folders are skipped and logged.
    """
    if not model.info.lora_prefetch_dir or find_adapter_obstacle(model) is not None:
        return []
    root = Path(model.info.lora_prefetch_dir)
    names = list_adapters(root)
    if model.engine_kind in kind_names() and find_kind(model.engine_kind).load is not None:
        return [model.with_adapter(name, lora_name=name) for name in names]
    skipped = [name for name in names if not _is_task_id(name)]
    if skipped:
        _log.warning(
            "The gateway does not serve these adapters of the model %s, because the C++ backend "
            "requires task ids as the names of their folders in %s: %s.",
            model.name,
            root,
            ", ".join(skipped),
        )
    return [
        model.with_adapter(name, lora_task_id=int(name), lora_folder=str(root / name))
        for name in names
        if name not in skipped
    ]


def _is_task_id(name: str) -> bool:
    return name.isascii() and name.isdecimal() and int(name) < 1 << 64


def list_adapters(folder: Path) -> list[str]:
    """Return the sorted names of the adapters in `folder`, or [] if the folder cannot be read.

    Each subfolder is an adapter. Subfolders whose names start with a dot are ignored.
    """
    with contextlib.suppress(OSError):
        return sorted(
            each.name for each in folder.iterdir() if each.is_dir() and each.name[0] != "."
        )
    return []
