"""Copy the files of a checkpoint from which Transformers loads its tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

# Suffixes of the small files; the checkpoint has `.py` files only if its code is trusted.
_SMALL_FILES = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")


def copy_tokenizer(checkpoint: Path, folder: Path) -> Path:
    """Copy the small files of the checkpoint, without its weights, to `folder`; return `folder`."""
    folder.mkdir(exist_ok=True)
    for path in checkpoint.iterdir():
        if path.suffix in _SMALL_FILES and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    return folder
