"""Read the sizes that determine an OpenVINO engine's memory usage."""

from __future__ import annotations

import re
from pathlib import Path

from trtllm_serve_cli.engine_kinds.cpu_memory import EngineSize

# Matches an operation that accesses a KV cache state. The state's shape is [batch, heads, tokens,
# head size]. Several operations access the same state.
_CACHE = re.compile(
    r'<data [^>]*variable_id="(?P<id>[^"]*)"[^>]*'
    r'variable_shape="\?,(?P<heads>\d+),\?,(?P<head_size>\d+)"'
)


def read_engine_size(directory: Path) -> EngineSize | None:
    """Return the sizes of the engine in `directory`.

    Return None if the engine has no KV cache, or if its files cannot be read or have an unknown
    format.
    """
    try:
        weight_bytes = (directory / "openvino_model.bin").stat().st_size
        model = (directory / "openvino_model.xml").read_text("utf-8")
    except (OSError, ValueError):
        return None
    caches = {
        match["id"]: (int(match["heads"]), int(match["head_size"]))
        for match in _CACHE.finditer(model)
    }
    if not caches:
        return None
    return EngineSize(
        weight_bytes=weight_bytes,
        kv_heads=sum(heads for heads, _ in caches.values()),
        kv_values=sum(heads * head_size for heads, head_size in caches.values()),
    )
