"""Plan the `inflight` layout, which has the models and tensors of all_models/inflight_batcher_llm.

Other layouts are derived from these models or use some of their parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.serving import DRAFT_MODEL, ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.contract import (
    Contract,
    load_contracts,
    load_text_contract,
)
from trtllm_serve_cli.repository.model.model_config import ModelConfig, QueuePolicy
from trtllm_serve_cli.repository.model.parameters import (
    Parameter,
    defaults_for,
    list_unused,
    load_parameters,
    type_tensors,
)

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine

# Parameters for which a draft model uses the value of its target model. With different values,
# requests to one of the two models may fail.
_SHARED_WITH_DRAFT = (
    "decoupled_mode",
    "exclude_input_in_output",
    "max_queue_size",
    "speculative_decoding_fast_logits",
    "tokenizer_dir",
)
_DRAFT_PREFIX = "draft_"
_DRAFT_NAME = "tensorrt_llm_draft_model_name"


def plan_inflight(
    name: str, engine: Engine, options: ServingOptions, values: Mapping[str, str]
) -> tuple[ModelConfig, ...]:
    """Plan all models of the layout, with the parameter values in `values`."""
    models = (
        _preprocessing(engine, values),
        plan_tensorrt_llm(engine, values),
        _postprocessing(engine, values),
        *(_text(each, name, engine, values) for each in _text_models(name)),
    )
    unused = list_unused(options.parameters, engine.kind)
    models = tuple(_with_unused(each, unused, values) for each in models)
    return models + _draft(engine, values)


def _with_unused(
    model: ModelConfig, unused: Sequence[Parameter], values: Mapping[str, str]
) -> ModelConfig:
    """Return `model` with an entry for each unused parameter that NVIDIA's model also has."""
    role = "tensorrt_llm_bls" if model.name not in load_contracts() else model.name
    entries = {
        place.removeprefix("parameters."): values[each.name]
        for each in unused
        for place in each.fills.get(role, ())
    }
    return replace(model, parameters=model.parameters | entries)


def _text_models(name: str) -> Sequence[str]:
    return ("ensemble", "tensorrt_llm_bls", name)


def _common(values: Mapping[str, str]) -> dict[str, Any]:
    return {"max_batch_size": int(values["triton_max_batch_size"])}


def _queue(values: Mapping[str, str], policy: QueuePolicy) -> dict[str, Any]:
    """Return the queue fields of `ModelConfig`.

    Enable the dynamic batcher only if a queue delay or `policy` requires it. If the dynamic batcher
    does not detect a free instance, it sleeps for up to half a second while requests are waiting
    (`DynamicBatchScheduler::Enqueue` in Triton's core). The Python models do not benefit from the
    dynamic batcher, because they accept every request immediately.
    """
    delay_us = int(values["max_queue_delay_microseconds"])
    return {
        "is_batched": bool(delay_us) or policy != QueuePolicy(),
        "max_queue_delay_microseconds": delay_us,
        "queue": policy,
    }


def read_queue_policy(values: Mapping[str, str]) -> QueuePolicy:
    """Return the policy for the queue of `tensorrt_llm`. Raise `BadInput` if it is not valid."""
    policy = QueuePolicy(**{name: int(values[name]) for name in QueuePolicy.__slots__})
    if (
        not min(policy.priority_levels, 1)
        <= policy.default_priority_level
        <= policy.priority_levels
    ):
        raise BadInput(
            f"default_priority_level is {policy.default_priority_level}, but priority_levels is "
            f"{policy.priority_levels}.",
            why="the default level must be one of the priority levels",
            next_step=f"set default_priority_level=N with N from 1 to {policy.priority_levels}"
            if policy.priority_levels
            else f"set priority_levels to {policy.default_priority_level} or more",
        )
    return policy


def _preprocessing(engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    contract = _contracts(engine)["preprocessing"]
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


def plan_tensorrt_llm(engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    """Plan the model that runs the engine."""
    serving = find_kind(engine.kind).serving
    serving.check_values(engine, values)
    backend = serving.core.backend_parameter
    batching = _queue(values, read_queue_policy(values)) | _common(values)
    contract = _contracts(engine)["tensorrt_llm"]
    if backend is not None:
        contract = type_tensors("tensorrt_llm", contract, values)
        # Like NVIDIA's template for this model, always enable the dynamic batcher.
        batching |= {"backend": values[backend], "is_batched": True}
    return ModelConfig(
        name="tensorrt_llm",
        title=f"the engine of {engine.model_name} ({engine.kind})",
        module=None if backend else "tensorrt_llm",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters=_entries(engine, values),
        instance_count=int(values["tensorrt_llm_instance_count"]),
        is_decoupled=values["decoupled_mode"] == "true",
        **batching,
    )


def _draft(engine: Engine, values: Mapping[str, str]) -> tuple[ModelConfig, ...]:
    """Return a tuple with the model that generates draft tokens for `tensorrt_llm`.

    If the engine does not use a draft model, return an empty tuple, or raise `BadInput` if a
    `draft_NAME` parameter is set.

    The `draft_NAME` parameter sets the draft model's NAME parameter. The parameters in
    `_SHARED_WITH_DRAFT` have the same values as in `tensorrt_llm`. All other parameters have the
    draft engine's defaults.
    """
    serving = find_kind(engine.kind).serving
    table = load_parameters()
    own = {
        name.removeprefix(_DRAFT_PREFIX): value
        for name, value in values.items()
        if table[name].is_of_draft_model
    }
    draft = serving.describe_draft(engine, values)
    if draft is None:
        if names := [name for name, value in own.items() if value]:
            raise BadInput(
                f"{_DRAFT_PREFIX}{names[0]} requires a draft model.",
                why=f"{serving.draft_parameter} is not set",
                next_step="add --draft NAME, or omit the parameter",
            )
        return ()
    shared = {name: values[name] for name in _SHARED_WITH_DRAFT if name in values}
    defaults = defaults_for(engine.kind) | serving.plan_values(draft, ServingOptions(), {})
    model = plan_tensorrt_llm(draft, defaults | shared | own)
    title = f"the draft model of {engine.model_name} ({engine.kind})"
    return (replace(model, name=DRAFT_MODEL, title=title),)


def _entries(engine: Engine, values: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of `parameters` in the `config.pbtxt` of `tensorrt_llm`.

    An entry without a value is an empty string.
    """
    serving = find_kind(engine.kind).serving
    core, version = serving.core, serving.contract_version(engine)
    # Only the Python model in the runtime package reads these entries.
    facts = {"engine_kind": engine.kind, "vocab_size": str(engine.vocab_size)}
    entries = (facts if core.backend_parameter is None else {}) | {
        place.removeprefix("parameters."): values.get(each.name, "")
        for each in load_parameters().values()
        if each.applies_to(engine.kind)
        and each.is_in(version)
        and not each.is_fact
        and each.name not in core.omitted
        for place in each.fills.get("tensorrt_llm", ())
        if place.startswith("parameters.")
    }
    return {**entries, **core.entries}


def _postprocessing(engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    contract = _contracts(engine)["postprocessing"]
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


def _contracts(engine: Engine) -> Mapping[str, Contract]:
    """Return the inputs and outputs of NVIDIA's models for the engine's TensorRT-LLM version."""
    return load_contracts(find_kind(engine.kind).serving.contract_version(engine))


def _text(model: str, own_name: str, engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    kind = "ensemble" if model == "ensemble" else "tensorrt_llm_bls"
    # In repositories that tllm creates, `ensemble` is also a Python model, so all text models use
    # the tensor types of `tensorrt_llm_bls`.
    version = find_kind(engine.kind).serving.contract_version(engine)
    contract = type_tensors("tensorrt_llm_bls", load_text_contract(kind, version), values)
    return ModelConfig(
        name=model,
        title=f"text to text with {own_name}",
        module="text",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters={
            "engine_kind": engine.kind,
            **({"tensorrt_llm_version": version} if version else {}),
            "tokenizer_dir": values["tokenizer_dir"],
            "exclude_input_in_output": values["exclude_input_in_output"],
            "tensorrt_llm_model_name": values["tensorrt_llm_model_name"],
            "preprocessing_model_name": values["preprocessing_model_name"],
            "ask_preprocessing": values["ask_preprocessing"],
            "add_special_tokens": values["add_special_tokens"],
            "skip_special_tokens": values["skip_special_tokens"],
            "cancellation_check_period_ms": values["cancellation_check_period_ms"],
            "accumulate_tokens": values["accumulate_tokens"],
            **{name: values[name] for name in (_DRAFT_NAME,) if name in values},
            # `tllm infer` and the gateway read the engine kind, the length limit and the prompt
            # format from these parameters.
            "max_seq_len": values["max_seq_len"],
            **engine.list_prompt_parameters(),
        },
        instance_count=int(values["bls_instance_count"]),
        is_decoupled=values["decoupled_mode"] == "true",
        **_common(values),
    )
