"""Find TensorRT-LLM's converter scripts, which are not part of its Python package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

# Converter folder in NVIDIA's Triton images since TensorRT-LLM 0.17.
IN_IMAGE = Path("/app/examples")
# Converter folder in a mounted checkout of triton-inference-server/tensorrtllm_backend, as
# described in its documentation. NVIDIA's images with TensorRT-LLM versions before 0.17 do not
# contain the converters.
_IN_CHECKOUT = Path("/tensorrtllm_backend/tensorrt_llm/examples")
# Folders to search for the converters, in order of preference.
_CANDIDATES = (IN_IMAGE, Path("/app/tensorrt_llm/examples"), _IN_CHECKOUT)
FIRST_IN_IMAGE = Version("0.17.0")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The TensorRT-LLM version that builds the engine, and the location of its scripts.

    `examples_dir` is the `examples` folder of TensorRT-LLM's repository. `python` is the
    interpreter that runs the scripts in this folder.
    """

    version: Version
    examples_dir: Path
    python: str = "python3"


def find_examples_dir(version: Version, is_there: Callable[[Path], bool] = Path.is_file) -> Path:
    """Return the folder that contains the converter scripts.

    If this machine has no converter scripts, return the folder in NVIDIA's image for `version`. If
    this image does not contain the scripts, return the folder of a checkout mounted in the
    container.
    """
    for folder in _CANDIDATES:
        if is_there(folder / "quantization/quantize.py"):
            return folder
    return IN_IMAGE if version >= FIRST_IN_IMAGE else _IN_CHECKOUT
