"""What a model repository is to hold, as data."""

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
    """Who waits in Triton's queue, and how long; zeros leave it to Triton's defaults."""

    max_queue_size: int = 0
    default_timeout_microseconds: int = 0
    priority_levels: int = 0
    default_priority_level: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One Triton model: what its `config.pbtxt` says, and what lies in its version's folder.

    `module` is the runtime module that serves it, None for a backend that brings its own code.
    `files` are further files of the version: name -> text.
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
    """A whole repository for the model `name`.

    `parameters` is what every parameter of the engine kind is, `asked` those that were wished for.
    `preserved` are those that `tllm set` had changed in the repository whose place it takes.
    `declaration` is what its import was told, as a `tllm.yaml` has it.
    """

    name: str
    engine: Engine
    models: tuple[ModelConfig, ...]
    layout: Layout = "inflight"
    parameters: Mapping[str, str] = field(default_factory=dict)
    requested: tuple[str, ...] = ()
    preserved: Mapping[str, str] = field(default_factory=dict)
    declaration: Mapping[str, Any] = field(default_factory=dict)
