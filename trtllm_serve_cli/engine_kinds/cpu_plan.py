"""Plan the memory and limits of an engine that runs on a CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.cpu_memory import (
    CpuHost,
    EngineSize,
    count_required_bytes,
    kv_bytes_per_token,
)
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.serving import ServingOptions, list_limits


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """The result of `tllm plan` for a CPU.

    `engine` is an existing engine or an engine preview. `values` are the model repository's
    parameters.
    """

    engine: Engine
    host: CpuHost
    values: Mapping[str, str]

    @property
    def size(self) -> EngineSize | None:
        """The engine's sizes, or None if unknown."""
        return self.engine.details if isinstance(self.engine.details, EngineSize) else None

    @property
    def required_bytes(self) -> int | None:
        """The server's minimum memory, in bytes, or None if unknown."""
        return count_required_bytes(self.size, self.host) if self.size else None

    @property
    def fits(self) -> bool:
        """False if the host is known to have less memory than the server requires."""
        return (self.required_bytes or 0) <= self.host.memory_bytes

    def describe_limits(self) -> str:
        """Return the engine's limits as text."""
        serving = find_kind(self.engine.kind).serving
        return serving.describe_limits(self.engine, self.values, self.host)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that `--json` prints. Sizes are in bytes or tokens."""
        engine, size = self.engine, self.size
        return {
            "source": engine.source,
            "architecture": engine.architecture,
            "engine_kind": engine.kind,
            "weights": engine.weights,
            "weight_bytes": size and size.weight_bytes,
            "kv_bytes_per_token": size and kv_bytes_per_token(size, self.host),
            "memory_bytes": self.host.memory_bytes,
            "required_bytes": self.required_bytes,
            "num_threads": self.host.num_threads,
            "limits": list_limits(self.values),
        }


def plan_on_cpu(engine: Engine, host: CpuHost, options: ServingOptions) -> CpuPlan:
    """Choose the engine's limits for the host.

    Raise `BadInput` if the engine kind rejects an option, for example a sequence length that
    exceeds the model's context length.
    """
    options = dataclasses.replace(options, host=host)
    values = find_kind(engine.kind).serving.plan_values(engine, options, {})
    return CpuPlan(engine, host, values)
