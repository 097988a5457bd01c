"""Replace several files in a model repository atomically.

A rename is atomic only for a single file. Therefore, tllm first commits the change by writing
all new texts to the `.tllm-changes` file in the repository. If the process is killed before it has
replaced all files, the next command that reads the repository completes the change.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from trtllm_serve_cli.errors import RepositoryError, explain_invalid_file
from trtllm_serve_cli.paths import write_text

_COMMITTED = ".tllm-changes"


def replace_files(repository: Path, texts: Mapping[Path, str]) -> None:
    """Replace the content of the files in `texts`. If an error occurs, no file is changed.

    The paths are relative to `repository`. Raise `OSError` if a file is missing or cannot be
    written, and `RepositoryError` if the committed change cannot be read.
    """
    old = {path: (repository / path).read_bytes().decode("utf-8") for path in texts}
    content = {str(path): text for path, text in texts.items()}
    write_text(repository / _COMMITTED, json.dumps(content))
    try:
        complete_changes(repository)
    except (OSError, RepositoryError):
        for path, text in old.items():
            if (repository / path).read_bytes() != text.encode():
                write_text(repository / path, text)
        (repository / _COMMITTED).unlink()
        raise


def complete_changes(repository: Path) -> None:
    """Complete a committed change that was interrupted before all files were replaced.

    Raise `RepositoryError` if the committed change is damaged.
    """
    committed = repository / _COMMITTED
    try:
        texts = json.loads(committed.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError as error:
        raise RepositoryError(
            f"A change of {repository} cannot be completed.",
            why=explain_invalid_file(str(committed), error),
            next_step=f"run `rm {shlex.quote(str(committed))}`, and then repeat the change",
        ) from error
    for path, text in texts.items():
        write_text(repository / path, text)
    committed.unlink(missing_ok=True)
