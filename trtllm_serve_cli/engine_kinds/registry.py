"""List the engine kinds in the order in which `--engine auto` tries them.

`find_kind` imports a kind's module on demand, so `--help` can list the names without importing the
build planning code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.engine_kinds.kind import EngineKind

# Maps kind names to the modules that define the `KIND` constant.
MODULES = {
    "tensorrt": "trtllm_serve_cli.engine_kinds.tensorrt.kind",
    "pytorch": "trtllm_serve_cli.engine_kinds.pytorch.kind",
    "vllm": "trtllm_serve_cli.engine_kinds.vllm.kind",
    "openvino": "trtllm_serve_cli.engine_kinds.openvino.kind",
    "sim": "trtllm_serve_cli.engine_kinds.sim.kind",
}
# The `--engine` value that makes tllm select a kind based on the machine and the checkpoint.
AUTO = "auto"
# The engine kind that runs on any CPU. If no engine is installed, tllm suggests installing this
# kind.
EMBEDDED = "openvino"
# The engine kind for copies of NVIDIA's model repository, which do not name an engine kind.
UPSTREAM = "tensorrt"


def kind_names() -> tuple[str, ...]:
    """Return the names of all engine kinds."""
    return tuple(MODULES)


def find_kind(name: str) -> EngineKind:
    """Return the engine kind with this name. Raise `BadInput` if the name is unknown."""
    if name not in MODULES:
        raise BadInput(
            f"{name!r} is not an engine kind.",
            next_step=f"choose one of these engine kinds: {', '.join(MODULES)}",
        )
    kind: EngineKind = import_module(MODULES[name]).KIND
    return kind


def all_kinds() -> tuple[EngineKind, ...]:
    """Return all engine kinds."""
    return tuple(map(find_kind, MODULES))
