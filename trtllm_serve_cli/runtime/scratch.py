"""Create temporary folders in the server's temporary folder.

The supervisor, or the task of a Slurm job, clears the server's temporary folder, so files left
behind by killed processes do not accumulate.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

VARIABLE = "TLLM_SCRATCH"


def make_temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder in `$TLLM_SCRATCH`.

    If `$TLLM_SCRATCH` is unset or does not exist, use the system's temporary folder.
    """
    parent = os.environ.get(VARIABLE, "")
    return tempfile.TemporaryDirectory(
        prefix=prefix, dir=parent if parent and Path(parent).is_dir() else None
    )
