"""Find the converters of TensorRT-LLM, which are not part of its wheels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

# The folder in NVIDIA's containers since TensorRT-LLM 0.17.
_IN_CONTAINER = Path("/app/examples")
# The documentation of triton-inference-server/tensorrtllm_backend mounts a checkout with this
# folder into earlier containers.
_IN_CHECKOUT = Path("/tensorrtllm_backend/tensorrt_llm/examples")
# Folders to search for the converters, in order of preference.
_CANDIDATES = (_IN_CONTAINER, Path("/app/tensorrt_llm/examples"), _IN_CHECKOUT)
_FIRST_IN_CONTAINER = Version("0.17.0")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The version of TensorRT-LLM that builds the engine.

    `examples_dir` is the folder `examples` in its sources. `python` runs the scripts there.
    """

    version: Version
    examples_dir: Path
    python: str = "python3"


def find_examples_dir(version: Version, is_there: Callable[[Path], bool] = Path.is_file) -> Path:
    """Return the folder with the converters.

    If this machine has no converters, return their folder in the version's container.
    """
    for folder in _CANDIDATES:
        if is_there(folder / "quantization/quantize.py"):
            return folder
    return _IN_CONTAINER if version >= _FIRST_IN_CONTAINER else _IN_CHECKOUT
