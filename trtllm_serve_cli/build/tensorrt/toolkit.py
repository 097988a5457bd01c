"""The TensorRT-LLM that is to build, and where its converters are: no wheel has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

# Where NVIDIA's containers have the folder, from 0.17 on, and where it is in the checkout that the
# pages of triton-inference-server/tensorrtllm_backend mount into earlier ones. First come first.
_IN_CONTAINER = Path("/app/examples")
_IN_CHECKOUT = Path("/tensorrtllm_backend/tensorrt_llm/examples")
_CANDIDATES = (_IN_CONTAINER, Path("/app/tensorrt_llm/examples"), _IN_CHECKOUT)
_FIRST_IN_CONTAINER = Version("0.17.0")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """`examples_dir` is the folder `examples` of the sources of this `version`."""

    version: Version
    examples_dir: Path
    python: str = "python3"


def find_examples_dir(version: Version, is_there: Callable[[Path], bool] = Path.is_file) -> Path:
    """Where the converters are here; where none are, where this version's container has them."""
    for folder in _CANDIDATES:
        if is_there(folder / "quantization/quantize.py"):
            return folder
    return _IN_CONTAINER if version >= _FIRST_IN_CONTAINER else _IN_CHECKOUT
