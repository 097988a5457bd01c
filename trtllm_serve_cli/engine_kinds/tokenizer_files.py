"""Copy the files that Transformers needs to load a checkpoint's tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

from trtllm_serve_cli.sources.formats.chat_templates import TEMPLATES_FOLDER

# Suffixes of files that a tokenizer may need. Python files are safe to copy, because Transformers
# runs them only if a config refers to them. tllm rejects such configs unless the user trusts the
# code.
_SMALL_FILES = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")


def copy_tokenizer(checkpoint: Path, folder: Path) -> Path:
    """Copy all files that a tokenizer may need into `folder`. Return `folder`."""
    folder.mkdir(exist_ok=True)
    if templates := list((checkpoint / TEMPLATES_FOLDER).glob("*.jinja")):
        (folder / TEMPLATES_FOLDER).mkdir(exist_ok=True)
        for path in templates:
            shutil.copyfile(path, folder / TEMPLATES_FOLDER / path.name)
    for path in checkpoint.iterdir():
        if path.suffix in _SMALL_FILES and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    return folder
