"""Define the plan of a model repository."""

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
    """The limits and priorities of Triton's request queue. Zero selects Triton's default."""

    max_queue_size: int = 0
    default_timeout_microseconds: int = 0
    priority_levels: int = 0
    default_priority_level: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Triton model: the values in its `config.pbtxt`, and the files in its version folder.

    `module` is the runtime module that serves the model, or None for a backend with its own code.
    `files` maps the names of other files in the version folder to their text.
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
    """The plan of a repository for the model `name`.

    `parameters` has the value of every parameter that applies to the engine kind. `requested` has
    the names of the parameters that the user set. `preserved` has the values that `tllm set` wrote
    to the repository that this one replaces. `declaration` is the import's entry in a `tllm.yaml`.
    """

    name: str
    engine: Engine
    models: tuple[ModelConfig, ...]
    layout: Layout = "inflight"
    parameters: Mapping[str, str] = field(default_factory=dict)
    requested: tuple[str, ...] = ()
    preserved: Mapping[str, str] = field(default_factory=dict)
    declaration: Mapping[str, Any] = field(default_factory=dict)
