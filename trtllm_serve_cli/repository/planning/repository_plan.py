"""Plan the contents of a model repository, with one `ModelConfig` per Triton model."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.selection import kinds_in_layout
from trtllm_serve_cli.engine_kinds.serving import DRAFT_MODEL, ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.layouts.embedding import (
    embedding_values,
    list_embedding_parameters,
    plan_embedding,
)
from trtllm_serve_cli.repository.layouts.gpt import plan_gpt
from trtllm_serve_cli.repository.layouts.inflight import (
    plan_inflight,
    plan_tensorrt_llm,
    read_queue_policy,
)
from trtllm_serve_cli.repository.layouts.llmapi import list_llmapi_parameters, plan_llmapi
from trtllm_serve_cli.repository.layouts.vllm import (
    list_vllm_parameters,
    list_worker_parameters,
    plan_vllm,
    plan_worker,
    vllm_values,
)
from trtllm_serve_cli.repository.model.instances import with_instance_count
from trtllm_serve_cli.repository.model.model_config import ModelConfig, RepositoryPlan
from trtllm_serve_cli.repository.model.parameters import (
    check_parameters,
    defaults_for,
    load_parameters,
    refuse_unused,
)

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine

_TEXT_ROLE = "tensorrt_llm_bls"
# Names that users cannot choose for a model, because the inflight layout uses them for its Triton
# models.
RESERVED_NAMES = frozenset(
    (
        "preprocessing", "tensorrt_llm", DRAFT_MODEL, "postprocessing", "ensemble",
        "tensorrt_llm_bls",
    )
)  # fmt: skip


def plan_repository(name: str, engine: Engine, options: ServingOptions) -> RepositoryPlan:
    """Plan the repository that serves `engine` as the model named `name`.

    Raise `BadInput` if the name is reserved, or if the layout does not support the engine. Also
    raise `BadInput` if an option value is not valid, or if the engine or the layout does not
    support an option.
    """
    check_name_is_free_in_layout(name)
    check_layout(options.layout, engine.kind)
    check_task(options.layout, is_embedding_model=engine.embedding is not None)
    plan = _LAYOUTS[options.layout](name, engine, options)
    refuse_unused(options.parameters, plan.used, options.layout)
    return RepositoryPlan(
        name=name,
        engine=engine,
        models=plan.models,
        layout=options.layout,
        parameters=plan.values,
        requested=list_requested(options),
    )


def check_combination(parameters: Mapping[str, str], engine_kind: str) -> None:
    """Raise `BadInput` if a parameter is invalid or contradicts another parameter.

    Unlike `plan_repository`, this check does not require an engine, so it can run before the build.
    """
    overrides = with_instance_count(check_parameters(parameters, engine_kind), engine_kind)
    read_queue_policy(defaults_for(engine_kind) | overrides)


def check_layout(layout: Layout, engine_kind: str) -> None:
    """Raise `BadInput` if the layout does not support the engine kind."""
    layouts = find_kind(engine_kind).serving.layouts
    if layout in layouts:
        return
    kinds = " and ".join(sorted(kind.name for kind in kinds_in_layout(layout)))
    raise BadInput(
        f"The {layout} layout does not support the {engine_kind} engine kind.",
        why=f"the layout supports only {kinds}",
        next_step=f"choose --layout {' or '.join(layouts)}",
    )


def check_task(layout: Layout, *, is_embedding_model: bool) -> None:
    """Raise `BadInput` if the layout does not support the model's task.

    The embedding layout serves only embedding models. All other layouts serve only models that
    generate text.
    """
    if is_embedding_model and layout != "embedding":
        raise BadInput(
            f"An embedding model cannot be served in the {layout} layout.",
            why="the models in this layout generate text",
            next_step="use --layout embedding",
        )
    if layout == "embedding" and not is_embedding_model:
        raise BadInput(
            "A text-generation model cannot be served in the embedding layout.",
            why="the checkpoint lacks modules.json, which describes an embedding model",
            next_step="omit --layout",
        )


@dataclass(frozen=True, slots=True)
class _LayoutPlan:
    """The plan for a repository in one layout.

    `values` maps parameter names to values. `models` contains the repository's Triton models.
    `used` contains the names of the parameters that have an effect in the layout.
    """

    values: dict[str, str]
    models: tuple[ModelConfig, ...]
    used: Container[str]


def _plan_inflight(name: str, engine: Engine, options: ServingOptions) -> _LayoutPlan:
    values = _values(engine, options)
    models = plan_inflight(name, engine, options, values)
    return _LayoutPlan(values, models, _used(models, "inflight"))


def _plan_gpt(name: str, engine: Engine, options: ServingOptions) -> _LayoutPlan:
    values = _values(engine, options)
    models = plan_gpt(plan_inflight(name, engine, options, values), values)
    return _LayoutPlan(values, models, _used(models, "gpt"))


def _plan_llmapi(name: str, engine: Engine, options: ServingOptions) -> _LayoutPlan:
    values = _values(engine, options)
    core_parameters = plan_tensorrt_llm(engine, values).parameters
    models = plan_llmapi(engine, values, core_parameters)
    return _LayoutPlan(values, models, list_llmapi_parameters(values, core_parameters))


def _plan_vllm(name: str, engine: Engine, options: ServingOptions) -> _LayoutPlan:
    if (find_kind(engine.kind).serving.backends or {}).get("vllm"):
        values = vllm_values(engine, options)
        return _LayoutPlan(values, plan_vllm(name, engine, values), list_vllm_parameters())
    values = _values(engine, options)
    core_parameters = plan_tensorrt_llm(engine, values).parameters
    models = plan_worker(name, engine, values, core_parameters)
    return _LayoutPlan(values, models, list_worker_parameters(values, core_parameters))


def _plan_embedding(name: str, engine: Engine, options: ServingOptions) -> _LayoutPlan:
    values = embedding_values(options, _values(engine, options))
    models = plan_embedding(name, engine, options, values)
    return _LayoutPlan(values, models, list_embedding_parameters(engine.kind))


_LAYOUTS: Mapping[Layout, Callable[[str, Engine, ServingOptions], _LayoutPlan]] = {
    "inflight": _plan_inflight,
    "gpt": _plan_gpt,
    "llmapi": _plan_llmapi,
    "vllm": _plan_vllm,
    "embedding": _plan_embedding,
}


def check_name_is_free_in_layout(name: str) -> None:
    """Raise `BadInput` if the name is reserved for a model in the inflight layout."""
    if name in RESERVED_NAMES:
        raise BadInput(
            f"A model cannot be named {name}.",
            why="the name is reserved for a model in the inflight layout",
            next_step="choose another name with -m NAME",
        )


def _values(engine: Engine, options: ServingOptions) -> dict[str, str]:
    """Return the parameter values, keyed by name.

    User values override engine values, and engine values override defaults. For the parameters in
    `Serving.merged`, use the engine value, because it already includes the user value.
    """
    serving = find_kind(engine.kind).serving
    version = serving.contract_version(engine)
    checked = check_parameters(options.parameters, engine.kind, version)
    overrides = with_instance_count(checked, engine.kind)
    planned = serving.plan_values(engine, options, overrides)
    kept = {name: value for name, value in overrides.items() if name not in serving.merged}
    return defaults_for(engine.kind) | planned | kept


def _used(models: Sequence[ModelConfig], layout: Layout) -> set[str]:
    """Return the names of the parameters that set a field of at least one `config.pbtxt`."""
    return {
        each.name
        for each in load_parameters().values()
        for model in models
        for place in each.places(_TEXT_ROLE if model.module == "text" else model.name, layout)
        if _has_field(model, place, layout)
    }


def _has_field(model: ModelConfig, place: str, layout: Layout) -> bool:
    """Return whether the `config.pbtxt` of `model` may contain the field `place`."""
    if place.startswith("parameters."):
        return place.removeprefix("parameters.") in model.parameters
    # The gpt layout has no fields for queues and streaming, because its models neither use the
    # dynamic batcher nor stream responses.
    is_queue_or_stream = place.startswith(("dynamic_batching.", "model_transaction_policy."))
    return layout != "gpt" or not is_queue_or_stream


def list_requested(options: ServingOptions) -> tuple[str, ...]:
    """Return the names of the parameters that the user set directly or through another option."""
    defaults = ServingOptions()
    of_options = {
        "max_batch_size": ("triton_max_batch_size", "max_num_seqs", "max_tokens_in_paged_kv_cache"),
        "max_seq_len": ("max_seq_len", "max_tokens_in_paged_kv_cache"),
        "max_num_tokens": ("max_num_tokens",),
        "max_beam_width": ("max_beam_width",),
    }
    chosen = [
        parameter
        for option, parameters in of_options.items()
        if getattr(options, option) != getattr(defaults, option)
        for parameter in parameters
    ]
    return tuple(dict.fromkeys([*chosen, *options.parameters]))
