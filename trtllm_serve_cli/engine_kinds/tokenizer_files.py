"""The files of a checkpoint from which Transformers loads its tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

# The small files of a checkpoint; `.py` is there only if its code is trusted.
_SMALL_FILES = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")


def copy_tokenizer(checkpoint: Path, folder: Path) -> Path:
    """Copy the small files of the checkpoint, without its weights, into `folder`; return that."""
    folder.mkdir(exist_ok=True)
    for path in checkpoint.iterdir():
        if path.suffix in _SMALL_FILES and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    return folder
