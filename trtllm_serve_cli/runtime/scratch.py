"""Create temporary folders in the server's own folder for temporary files.

The supervisor clears this folder. In the system's folder, the files of killed processes would
accumulate.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

VARIABLE = "TLLM_SCRATCH"


def make_temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a new folder in `$TLLM_SCRATCH`, or in the system's folder if it does not exist."""
    parent = os.environ.get(VARIABLE, "")
    return tempfile.TemporaryDirectory(
        prefix=prefix, dir=parent if parent and Path(parent).is_dir() else None
    )
