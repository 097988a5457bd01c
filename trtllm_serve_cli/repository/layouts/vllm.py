"""Plan the `vllm` layout: a single text-to-text model, configured by `model.json`.

Triton's vLLM backend serves the `vllm` engine kind, and the runtime package serves other engine
kinds. By default, the vLLM backend adds missing tensors to the model configuration. This module
adds the tensors instead, because tllm starts Triton without auto-completion. Source: src/model.py
and samples/model_repository/vllm_model in triton-inference-server/vllm_backend@8de0c14.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.engine_kinds.checkpoint_serving import requested_limits
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.engine_kinds.vllm.engine_arguments import fit_limits
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.repository.model.model_config import ModelConfig
from trtllm_serve_cli.repository.model.parameters import check_parameters, load_parameters
from trtllm_serve_cli.runtime.engines.vllm.arguments import VLLM_ARGUMENTS
from trtllm_serve_cli.runtime.triton.model_json import render_model_json

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine

_OWN = ("gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size")
_SHARED = (
    "tokenizer_dir", "max_seq_len", "max_num_seqs", "max_num_tokens", "enable_kv_cache_reuse",
)  # fmt: skip
# Maps each parameter that has an effect with Triton's vLLM backend to its vLLM engine argument. Of
# these parameters, only those that the user set are written to `model.json`.
_ARGUMENTS = {name: VLLM_ARGUMENTS.rows[name][0] for name in _SHARED} | {
    name: name for name in _OWN
}


# Entries of `tensorrt_llm` in the inflight layout that are not written to `model.json`: the engine
# kind is in `config.pbtxt`, and the others do not apply to the vllm layout.
_NOT_ARGUMENTS = (
    "engine_kind",
    "gpt_model_type",
    "exclude_input_in_output",
    "instances_share_engine",
)
_OF_MODEL = ("tokenizer_dir", "add_special_tokens", "max_queue_size")


def vllm_values(engine: Engine, options: ServingOptions) -> dict[str, str]:
    """Return the values of the parameters that the user set, keyed by parameter name."""
    values = {name: str(value) for name, value in requested_limits(options).items()}
    return values | check_parameters(options.parameters, engine.kind)


def list_vllm_parameters() -> set[str]:
    """Return the names of the parameters that have an effect with Triton's vLLM backend."""
    return set(_ARGUMENTS)


def plan_vllm(name: str, engine: Engine, values: Mapping[str, str]) -> tuple[ModelConfig, ...]:
    """Return the configuration of the model named `name`.

    The parameters in `values` override the engine's own arguments. Raise `BadInput` if the user set
    fewer tokens per step than sequences.
    """
    contract = load_contracts()["vllm"]
    arguments: dict[str, Any] = {"model": str(engine.path), "tensor_parallel_size": 1}
    requested = {
        argument: _parse_value(values[parameter])
        for parameter, argument in _ARGUMENTS.items()
        if parameter in values
    }
    arguments |= {**(engine.llm_arguments or {}), **requested}
    arguments |= fit_limits(arguments, requested)
    model = ModelConfig(
        name=name,
        title=f"{engine.model_name} in Triton's vLLM backend",
        module=None,
        backend="vllm",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters={},
        max_batch_size=0,
        is_decoupled=True,
        instance_kind="KIND_MODEL",
        files={"model.json": json.dumps(arguments, indent=2) + "\n"},
    )
    return (model,)


def plan_worker(
    name: str, engine: Engine, values: Mapping[str, str], core_parameters: Mapping[str, str]
) -> tuple[ModelConfig, ...]:
    """Return the configuration of the model named `name`, whose engine runs in an engine worker.

    `core_parameters` contains the parameters of `tensorrt_llm` in the inflight layout.
    """
    contract = load_contracts()["vllm"]
    model = ModelConfig(
        name=name,
        title=f"text to text with {engine.model_name} ({engine.kind})",
        module="vllm",
        inputs=contract.inputs,
        outputs=contract.outputs,
        # `tllm infer` and the gateway read the engine kind, the length limit and the prompt
        # format from these parameters.
        parameters={
            "engine_kind": engine.kind,
            "max_seq_len": values["max_seq_len"],
            **engine.list_prompt_parameters(),
        },
        max_batch_size=0,
        is_decoupled=True,
        files={"model.json": render_model_json(_arguments(values, core_parameters))},
    )
    return (model,)


def list_worker_parameters(
    values: Mapping[str, str], core_parameters: Mapping[str, str]
) -> set[str]:
    """Return the names of the parameters that have an effect with an engine worker."""
    keys = set(_arguments(values, core_parameters))
    return {each.name for each in load_parameters().values() if keys.intersection(each.keys)} | {
        "max_queue_size"
    }


def _arguments(values: Mapping[str, str], core_parameters: Mapping[str, str]) -> dict[str, str]:
    arguments = {key: value for key, value in core_parameters.items() if key not in _NOT_ARGUMENTS}
    return arguments | {name: values[name] for name in _OF_MODEL}


def _parse_value(value: str) -> Any:
    """Parse `value` as JSON, or return it unchanged if it is not valid JSON."""
    try:
        return json.loads(value)
    except ValueError:
        return value
