"""List the engine kinds in the order in which `--engine auto` tries them.

A kind's module is imported when the kind is looked up, so that `--help` can list the names
without importing the code that plans builds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.engine_kinds.kind import EngineKind

# Name -> the module that has the kind as `KIND`.
MODULES = {
    "tensorrt": "trtllm_serve_cli.engine_kinds.tensorrt.kind",
    "pytorch": "trtllm_serve_cli.engine_kinds.pytorch.kind",
    "vllm": "trtllm_serve_cli.engine_kinds.vllm.kind",
    "openvino": "trtllm_serve_cli.engine_kinds.openvino.kind",
    "sim": "trtllm_serve_cli.engine_kinds.sim.kind",
}
# The value of `--engine` that selects a kind that fits the machine and the checkpoint.
AUTO = "auto"
# The kind that runs on any machine. If no engine is installed, errors suggest installing this kind.
EMBEDDED = "openvino"
# The engine kind of upstream's repositories, which tllm did not render.
UPSTREAM = "tensorrt"


def kind_names() -> tuple[str, ...]:
    """Return the names of all engine kinds."""
    return tuple(MODULES)


def find_kind(name: str) -> EngineKind:
    """Return the engine kind of this name. Raise `BadInput` if it is unknown."""
    if name not in MODULES:
        raise BadInput(
            f"There is no engine kind {name!r}.",
            next_step=f"choose one of {', '.join(MODULES)}",
        )
    kind: EngineKind = import_module(MODULES[name]).KIND
    return kind


def all_kinds() -> tuple[EngineKind, ...]:
    """Return all engine kinds."""
    return tuple(map(find_kind, MODULES))
