"""Find the converters of TensorRT-LLM, which are not part of its wheels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

# The folder in NVIDIA's containers since 0.17, and in the checkout that the documentation of
# triton-inference-server/tensorrtllm_backend mounts into earlier ones. In order of preference.
_IN_CONTAINER = Path("/app/examples")
_IN_CHECKOUT = Path("/tensorrtllm_backend/tensorrt_llm/examples")
_CANDIDATES = (_IN_CONTAINER, Path("/app/tensorrt_llm/examples"), _IN_CHECKOUT)
_FIRST_IN_CONTAINER = Version("0.17.0")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The TensorRT-LLM that builds; `examples_dir` is the folder `examples` of its sources."""

    version: Version
    examples_dir: Path
    python: str = "python3"


def find_examples_dir(version: Version, is_there: Callable[[Path], bool] = Path.is_file) -> Path:
    """Return the folder of the converters on this machine, or else in the version's container."""
    for folder in _CANDIDATES:
        if is_there(folder / "quantization/quantize.py"):
            return folder
    return _IN_CONTAINER if version >= _FIRST_IN_CONTAINER else _IN_CHECKOUT
