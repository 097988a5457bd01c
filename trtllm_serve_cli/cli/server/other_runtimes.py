"""Report models whose runtime is from another version of tllm."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtllm_serve_cli.cli.shared import output


def notify_other_runtimes(repositories: Iterable[Path]) -> None:
    """Print a line for each repository whose runtime is from another version of tllm."""
    from trtllm_serve_cli.repository.model.model_repository import open_repository
    from trtllm_serve_cli.repository.model.runtime_copy import has_other_runtime

    for path in repositories:
        repository = open_repository(path)
        if has_other_runtime(repository):
            output.notify(
                f"{repository.name} uses the runtime of another version of tllm. To update it, "
                f"stop its servers and run `tllm update {repository.target}`."
            )
