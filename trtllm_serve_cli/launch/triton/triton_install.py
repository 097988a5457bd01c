"""Find Triton and its requirements on this machine."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.errors import MissingPart

SYSTEM_TRITON = Path("/opt/tritonserver/bin/tritonserver")


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """A `tritonserver` binary and, for the embedded Triton, the parts of its Python backend.

    - `origin`: where the binary was found.
    - `backend_parts`: folder that contains the Python backend's library.
    - `stub`: path of the Python stub. `nvidia-pytriton` contains one stub for each Python version.

    Triton requires the library and the stub in the same folder, but the `nvidia-pytriton` package
    contains them in separate folders.
    """

    binary: Path
    origin: str
    backend_parts: Path | None = None
    stub: Path | None = None


IN_CONTAINER = TritonInstallation(SYSTEM_TRITON, "the container")


def find_embedded_root() -> Path | None:
    """Return Triton's folder in the `nvidia-pytriton` package, without importing the package.

    Return None if the package is not installed or does not contain `tritonserver`.
    """
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations))) / "tritonserver"
    return root if (root / "bin" / "tritonserver").exists() else None


def find_triton(
    environ: Mapping[str, str],
    *,
    system: Path = SYSTEM_TRITON,
    find_embedded_root: Callable[[], Path | None] = find_embedded_root,
) -> TritonInstallation:
    """Return the first `tritonserver` found on PATH, in /opt/tritonserver or in `nvidia-pytriton`.

    Raise `MissingPart` if Triton is not installed.
    """
    if on_path := shutil.which("tritonserver", path=environ.get("PATH")):
        return TritonInstallation(Path(on_path), "PATH")
    if system.exists():
        return TritonInstallation(system, str(system.parent.parent))
    root = find_embedded_root()
    if root is not None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return TritonInstallation(
            root / "bin" / "tritonserver",
            "the nvidia-pytriton package",
            root / "backends" / "python",
            root / "python_backend_stubs" / version / "triton_python_backend_stub",
        )
    raise MissingPart(
        "Triton Inference Server is not installed.",
        why="tritonserver is neither on PATH nor in /opt/tritonserver, and the nvidia-pytriton "
        "package, which includes tritonserver, is not installed",
        next_step="run `pip install 'trtllm-serve-cli[embedded]'` (requires Linux and Python "
        "3.12 or earlier)",
    )


def find_libpython() -> str | None:
    """Return the folder that contains the `libpython` of the running Python interpreter.

    Return "" if only the system provides `libpython`, or None if it is missing. Triton's Python
    stub is linked against `libpython`.
    """
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    for variable in ("LIBDIR", "LDLIBRARYDIR"):
        folder = sysconfig.get_config_var(variable)
        if folder and (Path(folder) / name).exists():
            return str(folder)
    return "" if _is_system_library(name) else None


def has_nvidia_gpu() -> bool:
    """Return whether the NVIDIA driver's control device exists on this machine."""
    return Path("/dev/nvidiactl").exists()


def count_nvidia_gpus() -> int:
    """Return the number of NVIDIA GPUs that this machine or this container can access."""
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))


def _is_system_library(name: str) -> bool:
    import ctypes

    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
