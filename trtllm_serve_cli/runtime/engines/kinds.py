"""Find the runtime description of an engine kind by its name.

Triton models, engine workers, the gateway and the command line use this module. The description of
the engine kind NAME is `KIND` in `engines/NAME/kind.py`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ..engine import Engine, InvalidRequest
from ..triton.parameters import Parameters
from ..triton.tensors import BIAS, SUPPORTED_INPUTS
from .capabilities import Capabilities, find_feature
from .embedder import Embedder


@dataclass(frozen=True, slots=True)
class RuntimeKind:
    """The runtime description of an engine kind.

    - `worker_config`: converts the `tensorrt_llm` model parameters to the JSON-serializable engine
      worker configuration. It is None if a Triton backend runs the engine.
    - `load`: creates the engine in the worker process from this configuration. It is None if a
      Triton backend runs the engine.
    - `read_model_yaml`: converts the arguments in `model.yaml` to `config.pbtxt` parameters. It is
      None unless the engine's package defines the `model.yaml` format.
    - `load_embedder`: creates the embedder from the configuration that `embedding_config`
      (worker_config.py) returns. It is None if the engine kind does not compute embeddings.
    - `import_packages`: imports the engine's packages before `load` is called. It is separate from
      `load`, because the worker reports the import time. It is None if this time is not reported.
    """

    capabilities: Capabilities
    worker_config: Callable[[Parameters], dict[str, Any]] | None = None
    load: Callable[[dict[str, Any]], Engine] | None = None
    read_model_yaml: Callable[[Mapping[str, Any]], dict[str, str]] | None = None
    load_embedder: Callable[[dict[str, Any]], Embedder] | None = None
    import_packages: Callable[[dict[str, Any]], None] | None = None


def find_kind(name: str) -> RuntimeKind:
    """Return the engine kind with this name. Raise `ValueError` if the name is unknown."""
    if name not in kind_names():
        raise ValueError(
            f"unknown engine kind {name!r}; set the engine_kind parameter to one of "
            f"{', '.join(kind_names())}"
        )
    kind: RuntimeKind = import_module(f"{__package__}.{name}.kind").KIND
    return kind


@cache
def kind_names() -> tuple[str, ...]:
    """Return the names of all engine kinds. Each sub-package of this package is an engine kind."""
    return tuple(each.name for each in pkgutil.iter_modules(_folders()) if each.ispkg)


def is_supported(tensor: str, engine_kind: str) -> bool:
    """Return whether the engine kind supports the feature that uses `tensor`.

    Also return true if no feature uses `tensor`, or if the engine kind is unknown.
    """
    if engine_kind not in kind_names():
        return True
    return find_feature(tensor) not in find_kind(engine_kind).capabilities.unsupported


def list_supported_inputs(engine_kind: str) -> frozenset[str]:
    """Return the `tensorrt_llm` inputs that models of this engine kind accept.

    The engine may still reject some values of these inputs.
    """
    return SUPPORTED_INPUTS - (set() if is_supported(BIAS, engine_kind) else {BIAS})


def explain_rejection(tensor: str, engine_kind: str) -> str:
    """Return the error message for a request that sets the unsupported `tensor`."""
    feature = find_feature(tensor)
    why, kinds = "", []
    if feature is not None:
        unsupported = {name: find_kind(name).capabilities.unsupported for name in kind_names()}
        why = unsupported.get(engine_kind, {}).get(feature, "")
        kinds = [
            name
            for name, cannot in unsupported.items()
            if name != engine_kind and feature not in cannot
        ]
    feature_name = f" ({feature.name})" if feature else ""
    because = f", because {why}" if why else ""
    serve = f", or serve this model with the {' or '.join(kinds)} engine kind" if kinds else ""
    return (
        f"{tensor}{feature_name} is not supported by the {engine_kind} engine kind{because}. "
        f"Omit {tensor}{serve}."
    )


def reject_tensors(get: Callable[[str], Any], names: Iterable[str], engine_kind: str) -> None:
    """Raise `InvalidRequest` if a request sets any of the unsupported tensors in `names`.

    `get` returns a tensor of the request, or None. Accept tensors that contain no values, or only
    zero, false or empty values, because some clients always send these tensors.
    """
    for name in names:
        tensor = get(name)
        if tensor is not None and tensor.size and np.any(tensor.astype(bool)):
            raise InvalidRequest(explain_rejection(name, engine_kind))


def _folders() -> list[str]:
    return list(import_module(str(__package__)).__path__)
