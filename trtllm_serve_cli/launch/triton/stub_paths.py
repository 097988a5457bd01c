"""Check the paths that Triton passes to its Python stub.

Triton 2.51 starts the stub with `bash -c` and does not quote the stub path and the model path
(src/stub_launcher.cc in triton-inference-server/python_backend). The stub's Python interpreter
encodes paths as ASCII in every locale.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from trtllm_serve_cli.errors import BadInput

WHY = "Triton's Python backend supports only ASCII paths without spaces or shell metacharacters"


def is_usable(path: Path) -> bool:
    """Return whether Triton's Python stub supports the path."""
    # A tilde is special only at the start of a word, and the path is absolute.
    words = str(path).replace("~", "")
    return shlex.quote(words) == words


def check_paths(servers: Path, repositories: Iterable[Path], engines: Iterable[Path]) -> None:
    """Raise `BadInput` if Triton's Python stub cannot use the path of a folder.

    `servers` is the `servers` folder in TLLM_HOME. The paths of `engines` must be ASCII, but may
    contain spaces and shell metacharacters, because they are not part of the stub's command line.
    """
    options = {servers: "TLLM_HOME"} | dict.fromkeys(repositories, "--repo")
    for path, option in options.items():
        if not is_usable(path):
            raise BadInput(
                f"Triton cannot use the folder {path}.",
                why=WHY,
                next_step=f"set {option} to a folder whose path contains only ASCII letters, "
                "digits and the characters ./_-",
            )
    for path in engines:
        if not str(path).isascii():
            raise BadInput(
                f"Triton cannot use the folder {path}.",
                why="Triton's Python backend supports only ASCII paths",
                next_step="move the checkpoint or engine that you imported to an ASCII path, or "
                "set --engine-dir to an ASCII path if tllm builds the engine; then import the "
                "model again",
            )
