"""Locate the Hugging Face Hub, its local cache and its repositories."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.paths import expand_user
from trtllm_serve_cli.sources.disk_space import find_free_bytes


@dataclass(frozen=True, slots=True)
class Hub:
    """A Hugging Face Hub and its local cache.

    `endpoint` is `None` for the public hub. If `is_offline` is set, only the cache is used.
    `free(folder)` returns the free space, in bytes, on the folder's disk.
    """

    endpoint: str | None
    cache: Path
    is_offline: bool = False
    free: Callable[[Path], int] = find_free_bytes

    @property
    def url(self) -> str:
        return self.endpoint or "https://huggingface.co"

    def find_folder(self, repository: str) -> Path:
        """Return the cache folder of a repository, in the layout that huggingface_hub documents."""
        return self.cache / f"models--{repository.replace('/', '--')}"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A repository on the hub. If `revision` is None, the main branch is used."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf:{self.repository}" + (f"@{self.revision}" if self.revision else "")


def find_hub(environ: Mapping[str, str] = os.environ) -> Hub:
    """Return the hub and cache that environment variables select, as in huggingface_hub."""
    caches = Path(environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(environ.get("HF_HOME") or caches / "huggingface")
    cache = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    endpoint = environ.get("HF_ENDPOINT", "").rstrip("/") or None
    is_offline = any(
        environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
    return Hub(endpoint, expand_user(cache).absolute(), is_offline)
