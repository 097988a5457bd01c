"""Define the plan for a model repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.repository.model.contract import Tensor

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The limits and priorities for Triton's request queue.

    The value 0 disables a limit or timeout. If `priority_levels` is 0, requests have no priorities.
    """

    max_queue_size: int = 0
    default_timeout_microseconds: int = 0
    priority_levels: int = 0
    default_priority_level: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The plan for a Triton model's `config.pbtxt` and version folder.

    - `title`: description of the model for the files' header comments.
    - `module`: module in tllm's runtime package that serves the model, or None if the backend does
      not need a `model.py`.
    - `is_batched`: true to enable the dynamic batcher.
    - `files`: text of additional files in the version folder, keyed by file name.
    """

    name: str
    title: str
    module: str | None
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: dict[str, str]
    max_batch_size: int
    instance_count: int = 1
    is_decoupled: bool = False
    is_batched: bool = False
    max_queue_delay_microseconds: int = 0
    queue: QueuePolicy = QueuePolicy()
    backend: str = "python"
    instance_kind: str = "KIND_CPU"
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RepositoryPlan:
    """The plan for a repository that serves the model named `name`.

    - `parameters`: the parameter values, keyed by name. With Triton's vLLM backend, it contains
      only the parameters that the user set.
    - `requested`: the names of the parameters that the user set.
    - `preserved`: the values that `tllm set` wrote to the model's previous repository.
    - `declaration`: the `tllm.yaml` sections that describe the import.
    """

    name: str
    engine: Engine
    models: tuple[ModelConfig, ...]
    layout: Layout = "inflight"
    parameters: Mapping[str, str] = field(default_factory=dict)
    requested: tuple[str, ...] = ()
    preserved: Mapping[str, str] = field(default_factory=dict)
    declaration: Mapping[str, Any] = field(default_factory=dict)
