"""Check that a safetensors file is complete."""

from __future__ import annotations

import shlex
from pathlib import Path

from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.runtime.lora.safetensors_header import BadHeader, read_header


def check_safetensors(path: Path) -> frozenset[str]:
    """Return the file's tensor names.

    Raise `SourceError` if the file cannot be read, if its header is not valid, or if its size does
    not match the header.
    """
    try:
        return frozenset(read_header(path))
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read.",
            why=error.strerror or str(error),
            next_step=f"check the permissions with `ls -l {shlex.quote(str(path))}`",
        ) from error
    except BadHeader as error:
        raise SourceError(
            f"{path} is not a complete safetensors file.",
            why=str(error),
            next_step=f"remove the file with `rm {shlex.quote(str(path))}`, then download it again",
        ) from error
