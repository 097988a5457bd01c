"""Define `hf:ORG/NAME[@REVISION]` sources, which are repositories on the Hugging Face Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from trtllm_serve_cli.catalog.configs import find_config
from trtllm_serve_cli.errors import BadInput, GatedModel
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.checkpoint import Checkpoint
from trtllm_serve_cli.sources.hub.api import (
    fetch_from_hub,
    fetch_small_file,
    find_cached_config,
    find_file_size,
    inspect_on_hub,
)
from trtllm_serve_cli.sources.hub_address import Hub, HubAddress, find_hub
from trtllm_serve_cli.sources.progress import notify_periodically
from trtllm_serve_cli.sources.source import CheckpointSource, FetchPlan, FetchRequest

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPOSITORY = re.compile(f"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}")


@dataclass(frozen=True, slots=True)
class HubSource(HubAddress, CheckpointSource):
    """An `hf:ORG/NAME[@REVISION]` source, which is a repository on the Hugging Face Hub."""

    format: ClassVar[Literal["hf"]] = "hf"

    @classmethod
    def parse(cls, rest: str) -> HubSource:
        repository, at, revision = rest.partition("@")
        if not _REPOSITORY.fullmatch(repository) or re.search(r"--|\.\.|\.git$", repository):
            raise BadInput(
                f"'hf:{rest}' is not a valid Hugging Face repository name.",
                why="a name must have the form ORG/NAME, without --, .. or the suffix .git",
                next_step="copy the name from the model's page, for example "
                "`-s hf:openai-community/gpt2`",
            )
        return cls(repository, check_revision(revision) if at else None)

    def plan_fetch(self, home: Home, *, needs_weights: bool, hub: Hub | None) -> FetchPlan:
        hub = hub or find_hub()
        is_cached = find_cached_config(self, hub) is not None
        files = "safetensors and tokenizer files" if needs_weights else "tokenizer files"
        action = (
            f"use the Hugging Face cache, or update it from {hub.url}"
            if is_cached
            else f"download {files} from {hub.url}"
        )
        return FetchPlan(f"{self}: {action}", hub.find_folder(self.repository), is_cached)

    def fetch(self, request: FetchRequest) -> Checkpoint:
        return fetch_from_hub(
            self,
            hub=request.hub or find_hub(),
            home=request.home,
            options=request.options,
            notify=request.notify,
            watch=request.watch or notify_periodically(request.notify),
        )

    def inspect(self, request: FetchRequest) -> Checkpoint | None:
        hub = request.hub or find_hub()
        try:
            found = inspect_on_hub(self, hub=hub, options=request.options)
        except GatedModel:
            if planned := self._find_in_catalog(hub):
                return planned
            raise
        return found or self._find_in_catalog(hub)

    def _find_in_catalog(self, hub: Hub) -> Checkpoint | None:
        """Return a planned checkpoint whose config.json is from the model catalog.

        Return None if the catalog does not contain the model.
        """
        config = find_config(str(self))
        if config is None:
            return None
        # Use a placeholder for the commit, which is known only after the download.
        path = hub.find_folder(self.repository) / "snapshots" / "COMMIT"
        return Checkpoint(path, "hf", str(self), None, config["architectures"][0], 0, config=config)

    def find_small_file(self, name: str, hub: Hub | None = None) -> Path | None:
        return fetch_small_file(self, name, hub or find_hub())

    def find_file_size(self, name: str, hub: Hub | None = None) -> int | None:
        return find_file_size(self, name, hub or find_hub())

    def unpinned(self) -> HubSource:
        return replace(self, revision=None)

    def at_revision(self, revision: str) -> HubSource:
        if self.revision not in (None, revision):
            raise BadInput(
                "The source and --revision specify different revisions.",
                why=f"the source is {self}, and --revision is {revision}",
                next_step=f"pass `-s hf:{self.repository}@{revision}` without --revision",
            )
        return replace(self, revision=check_revision(revision))


def check_revision(revision: str) -> str:
    """Return `revision`. Raise `BadInput` if it is not a valid name for a branch, tag or commit."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise BadInput(
            f"{revision!r} is not a valid revision.",
            why="a revision must be a branch, a tag or a commit hash",
            next_step="omit the revision to use the main branch, or pass `-s hf:ORG/NAME@REVISION`",
        )
    return revision
