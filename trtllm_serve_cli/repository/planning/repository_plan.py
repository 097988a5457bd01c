"""What a model repository will hold, as data: one `ModelConfig` per Triton model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.kinds.pytorch import pytorch_values
from trtllm_serve_cli.repository.kinds.sim import sim_values
from trtllm_serve_cli.repository.kinds.tensorrt import plan_tensorrt_llm, tensorrt_values
from trtllm_serve_cli.repository.kinds.vllm_engine import vllm_engine_values
from trtllm_serve_cli.repository.layouts.llmapi import llmapi_uses, plan_llmapi
from trtllm_serve_cli.repository.layouts.vllm import plan_vllm, vllm_uses, vllm_values
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.repository.model.instances import with_instance_count
from trtllm_serve_cli.repository.model.model_config import (
    ModelConfig,
    QueuePolicy,
    RepositoryPlan,
    ServingOptions,
)
from trtllm_serve_cli.repository.model.parameters import (
    ENGINE_KINDS,
    Parameter,
    check_parameters,
    defaults_for,
    list_unused,
    load_parameters,
    refuse_unused,
    type_tensors,
)
from trtllm_serve_cli.runtime.engines.pytorch.arguments import LLM_ARGUMENTS
from trtllm_serve_cli.runtime.engines.vllm.arguments import VLLM_ARGUMENTS

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine

# Names that lead somewhere else in a repository.
RESERVED_NAMES = frozenset(
    ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
)
# Layout -> the engine kinds that can be served in it.
_ENGINES: Mapping[Layout, tuple[str, ...]] = {
    "inflight": ENGINE_KINDS,
    "llmapi": tuple(kind for kind in ENGINE_KINDS if kind not in ("tensorrt", "vllm")),
    "vllm": ("vllm",),
}
# The KV cache's default size: as many tokens per slot on average. A long request takes more than
# its share; the scheduler lets others wait meanwhile.
_KV_TOKENS_PER_SLOT = 512
# What an engine that Python serves runs at once when nothing else was asked for.
_MAX_BATCH_SIZE = 64
_MAX_NUM_TOKENS = 256
_MAX_BEAM_WIDTH = 4


def plan_repository(name: str, engine: Engine, options: ServingOptions) -> RepositoryPlan:
    """The repository that serves `engine` under `name`.

    Raises `BadInput` for a name that the layout itself uses, and for options beyond the engine.
    """
    check_name_is_free_in_layout(name)
    check_layout(options.layout, engine.kind)
    match options.layout:
        case "inflight":
            values = _values(engine, options)
            models = _plan_inflight(name, engine, values)
            idle = list_unused(options.parameters, engine.kind)
            models = tuple(_with_unused(each, idle, values) for each in models)
            used = _used(models)
        case "llmapi":
            values = _values(engine, options)
            of_engine = _tensorrt_llm(engine, values).parameters
            models = plan_llmapi(engine, values, of_engine)
            used = llmapi_uses(values, of_engine)
        case "vllm":
            values = vllm_values(options)
            models = plan_vllm(name, engine, values)
            used = vllm_uses()
    refuse_unused(options.parameters, used, options.layout)
    return RepositoryPlan(
        name=name,
        engine=engine,
        models=models,
        layout=options.layout,
        parameters=values,
        asked=list_asked(options),
    )


def check_layout(layout: Layout, engine_kind: str) -> None:
    """Raise `BadInput` for a layout that the engine kind cannot be served in."""
    if engine_kind in _ENGINES[layout]:
        return
    fitting = [each for each, kinds in _ENGINES.items() if engine_kind in kinds]
    raise BadInput(
        f"The engine kind {engine_kind} cannot be served in the layout {layout}.",
        why=f"that is for {' and '.join(_ENGINES[layout])}",
        next_step=f"choose --layout {' or '.join(fitting)}",
    )


def _plan_inflight(name: str, engine: Engine, values: Mapping[str, str]) -> tuple[ModelConfig, ...]:
    return (
        _preprocessing(engine, values),
        _tensorrt_llm(engine, values),
        _postprocessing(engine, values),
        *(_text(each, name, engine, values) for each in _text_models(name)),
    )


def check_name_is_free_in_layout(name: str) -> None:
    """Raise `BadInput` for a name that every model repository uses already."""
    if name in RESERVED_NAMES:
        raise BadInput(
            f"A model cannot be called {name}.",
            why="every model repository has a model of that name already",
            next_step="choose another name with -m NAME",
        )


def _with_unused(
    model: ModelConfig, idle: Sequence[Parameter], values: Mapping[str, str]
) -> ModelConfig:
    """`model` with those of the `idle` parameters that its upstream counterpart has."""
    role = "tensorrt_llm_bls" if model.name not in load_contracts() else model.name
    entries = {
        place.removeprefix("parameters."): values[each.name]
        for each in idle
        for place in each.fills.get(role, ())
    }
    return replace(model, parameters=model.parameters | entries)


def _text_models(name: str) -> Sequence[str]:
    return ("ensemble", "tensorrt_llm_bls", name)


def _values(engine: Engine, options: ServingOptions) -> dict[str, str]:
    """Every parameter of the engine kind: its default, what the options say, what was asked for."""
    given = with_instance_count(check_parameters(options.parameters, engine.kind), engine.kind)
    if engine.kind == "tensorrt":
        asked = tensorrt_values(engine, options)
    elif engine.kind == "pytorch":
        _check_context(engine, given, options)
        asked = pytorch_values(engine, options, given)
        # Those are among the others now.
        given.pop(LLM_ARGUMENTS.rest, None)
    elif engine.kind == "vllm":
        _check_context(engine, given, options)
        asked = vllm_engine_values(engine, options, given)
        given.pop(VLLM_ARGUMENTS.rest, None)
    elif engine.kind == "sim":
        asked = sim_values(engine, options, _check_context(engine, given, options))
    else:
        asked = _python_values(engine, options, given)
    return defaults_for(engine.kind) | asked | given


def _python_values(
    engine: Engine, options: ServingOptions, given: Mapping[str, str]
) -> dict[str, str]:
    max_seq_len = _check_context(engine, given, options)
    max_batch_size = options.max_batch_size or _MAX_BATCH_SIZE
    kv_tokens = max(max_batch_size * _KV_TOKENS_PER_SLOT, max_seq_len)
    return {
        "triton_max_batch_size": str(max_batch_size),
        "max_num_seqs": str(max_batch_size),
        "max_seq_len": str(max_seq_len),
        "max_num_tokens": str(options.max_num_tokens or _MAX_NUM_TOKENS),
        "max_beam_width": str(options.max_beam_width or _MAX_BEAM_WIDTH),
        "max_tokens_in_paged_kv_cache": str(kv_tokens),
        "tokenizer_dir": str(engine.path),
        "engine_dir": str(engine.path),
    }


def _check_context(engine: Engine, given: Mapping[str, str], options: ServingOptions) -> int:
    """How long prompt and answer may be; raises `BadInput` for more than the model knows."""
    max_seq_len = int(
        given.get("max_seq_len") or options.max_seq_len or engine.max_position_embeddings
    )
    if max_seq_len > engine.max_position_embeddings:
        raise BadInput(
            f"--max-seq-len {max_seq_len} is beyond the context of {engine.model_name}.",
            why=f"it was trained on {engine.max_position_embeddings} positions",
            next_step=f"ask for at most {engine.max_position_embeddings}",
        )
    return max_seq_len


def _used(models: Sequence[ModelConfig]) -> set[str]:
    """The parameters that some model of the repository has a place for."""
    there = {model.name: model.parameters for model in models}
    return {
        each.name
        for each in load_parameters().values()
        for model, places in each.fills.items()
        for place in places
        if model in there
        and (not place.startswith("parameters.") or place[len("parameters.") :] in there[model])
    }


def list_asked(options: ServingOptions) -> tuple[str, ...]:
    """The parameters that are as they are because someone said so."""
    usual = ServingOptions()
    of_options = {
        "max_batch_size": ("triton_max_batch_size", "max_num_seqs", "max_tokens_in_paged_kv_cache"),
        "max_seq_len": ("max_seq_len", "max_tokens_in_paged_kv_cache"),
        "max_num_tokens": ("max_num_tokens",),
        "max_beam_width": ("max_beam_width",),
    }
    chosen = [
        parameter
        for option, parameters in of_options.items()
        if getattr(options, option) != getattr(usual, option)
        for parameter in parameters
    ]
    return tuple(dict.fromkeys([*chosen, *options.parameters]))


def _common(values: Mapping[str, str]) -> dict[str, Any]:
    return {"max_batch_size": int(values["triton_max_batch_size"])}


def _queue(values: Mapping[str, str], policy: QueuePolicy) -> dict[str, Any]:
    """ModelConfig's fields on the queue: Triton's dynamic batcher only where something asks for it.

    The batcher sleeps up to half a second while requests wait when it misses that an instance is
    free (`DynamicBatchScheduler::Enqueue` of Triton's core), and our Python models take every
    request at once, so that there is nothing to batch.
    """
    delay_us = int(values["max_queue_delay_microseconds"])
    return {
        "is_batched": bool(delay_us) or policy != QueuePolicy(),
        "max_queue_delay_microseconds": delay_us,
        "queue": policy,
    }


def _queue_policy(values: Mapping[str, str]) -> QueuePolicy:
    policy = QueuePolicy(**{name: int(values[name]) for name in QueuePolicy.__slots__})
    if (
        not min(policy.priority_levels, 1)
        <= policy.default_priority_level
        <= policy.priority_levels
    ):
        raise BadInput(
            f"default_priority_level is {policy.default_priority_level}, and there are "
            f"{policy.priority_levels} priority_levels.",
            next_step=f"say default_priority_level=N with N from 1 to {policy.priority_levels}"
            if policy.priority_levels
            else "say priority_levels=N too",
        )
    return policy


def _preprocessing(engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    contract = load_contracts()["preprocessing"]
    return ModelConfig(
        name="preprocessing",
        title="text to token ids",
        module="preprocessing",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters={
            "tokenizer_dir": values["tokenizer_dir"],
            "add_special_tokens": values["add_special_tokens"],
        },
        instance_count=int(values["preprocessing_instance_count"]),
        **_queue(values, QueuePolicy(max_queue_size=int(values["max_queue_size"]))),
        **_common(values),
    )


def _tensorrt_llm(engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    queue = {**_queue(values, _queue_policy(values)), **_common(values)}
    if engine.kind == "tensorrt":
        return plan_tensorrt_llm(engine, values, {**queue, "is_batched": True})
    contract = load_contracts()["tensorrt_llm"]
    return ModelConfig(
        name="tensorrt_llm",
        title=f"the engine of {engine.model_name} ({engine.kind})",
        module="tensorrt_llm",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters=_entries(engine, values),
        instance_count=int(values["tensorrt_llm_instance_count"]),
        is_decoupled=values["decoupled_mode"] == "true",
        **queue,
    )


def _entries(engine: Engine, values: Mapping[str, str]) -> dict[str, str]:
    """Those of `config.pbtxt` that the engine kind heeds; empty where nothing is said."""
    entries = {"engine_kind": engine.kind, "vocab_size": str(engine.vocab_size)} | {
        place.removeprefix("parameters."): values.get(each.name, "")
        for each in load_parameters().values()
        if each.applies_to(engine.kind) and not each.is_fact
        for place in each.fills.get("tensorrt_llm", ())
        if place.startswith("parameters.")
    }
    if engine.kind in ("openvino", "sim"):
        # Their workers load no tokenizer.
        del entries["tokenizer_dir"]
        entries["gpt_model_type"] = "inflight_fused_batching"
    return entries


def _postprocessing(engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    contract = load_contracts()["postprocessing"]
    return ModelConfig(
        name="postprocessing",
        title="token ids to text",
        module="postprocessing",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters={
            "tokenizer_dir": values["tokenizer_dir"],
            "skip_special_tokens": values["skip_special_tokens"],
        },
        instance_count=int(values["postprocessing_instance_count"]),
        **_common(values),
    )


def _text(model: str, own_name: str, engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    kind = "ensemble" if model == "ensemble" else "tensorrt_llm_bls"
    # Both are Python models, whose tensors are those that the engine's model is asked with.
    contract = type_tensors("tensorrt_llm_bls", load_contracts()[kind], values)
    return ModelConfig(
        name=model,
        title=f"text to text with {own_name}",
        module="text",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters={
            "engine_kind": engine.kind,
            "tokenizer_dir": values["tokenizer_dir"],
            "tensorrt_llm_model_name": values["tensorrt_llm_model_name"],
            "preprocessing_model_name": values["preprocessing_model_name"],
            "ask_preprocessing": values["ask_preprocessing"],
            "add_special_tokens": values["add_special_tokens"],
            "skip_special_tokens": values["skip_special_tokens"],
            "cancellation_check_period_ms": values["cancellation_check_period_ms"],
            # For clients: what `tllm infer` needs to ask the model as it wants to be asked.
            "max_seq_len": values["max_seq_len"],
            "chat_template": engine.chat_template,
            "bos_token": engine.bos_token,
            "eos_token": engine.eos_token,
            "adds_bos": str(engine.adds_bos).lower(),
        },
        instance_count=int(values["bls_instance_count"]),
        is_decoupled=values["decoupled_mode"] == "true",
        **_common(values),
    )
