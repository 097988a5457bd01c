"""Plan the `llmapi` layout: a single text-to-text model, configured by `model.yaml`.

Source: triton_backend/all_models/llmapi in NVIDIA/TensorRT-LLM@c8c6df08. In NVIDIA's repository,
Triton completes `config.pbtxt` with values from `model.yaml`. tllm starts Triton without
auto-completion, so this module writes values that both files require, such as `decoupled`, to both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.repository.model.model_config import ModelConfig
from trtllm_serve_cli.repository.model.parameters import load_parameters
from trtllm_serve_cli.runtime.triton.model_yaml import render_arguments, render_model_yaml

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine

# Entries of `parameters` in the inflight layout that the llmapi layout does not write as arguments.
# These entries either have no effect or are in `triton_config`.
_NOT_ARGUMENTS = (
    "exclude_input_in_output",
    "cancellation_check_period_ms",
    # This parameter has no effect, because the layout always has a single instance.
    "instances_share_engine",
)
_SPECIAL_TOKENS = ("add_special_tokens", "skip_special_tokens")
_TOKENIZER_PARAMETERS = ("tokenizer_dir", *_SPECIAL_TOKENS)
_TRITON_CONFIG = ("decoupled_mode", "cancellation_check_period_ms", "max_queue_size")


def plan_llmapi(
    engine: Engine, values: Mapping[str, str], core_parameters: Mapping[str, str]
) -> tuple[ModelConfig, ...]:
    """Return the configuration of `tensorrt_llm`, the only model in this layout.

    `core_parameters` contains the parameters of `tensorrt_llm` in the inflight layout.
    """
    serving = find_kind(engine.kind).serving
    contract = load_contracts(serving.contract_version(engine))["llmapi"]
    is_decoupled = values["decoupled_mode"] == "true"
    triton_config = {
        "max_batch_size": 0,
        "decoupled": is_decoupled,
        "cancellation_check_period_ms": int(values["cancellation_check_period_ms"]),
        "max_queue_size": int(values["max_queue_size"]),
    }
    if model_yaml := serving.model_yaml:
        llm_arguments, entries = model_yaml(core_parameters)
        arguments = render_arguments(llm_arguments, triton_config)
        entries |= {name: values[name] for name in _SPECIAL_TOKENS}
    else:
        arguments = render_model_yaml(_arguments(values, core_parameters), triton_config)
        entries = {}
    model = ModelConfig(
        name="tensorrt_llm",
        title=f"text to text with {engine.model_name} ({engine.kind})",
        module="llmapi",
        inputs=contract.inputs,
        outputs=contract.outputs,
        # `tllm infer` and the gateway read the engine kind, the length limit and the prompt
        # format from these parameters.
        parameters=entries
        | {
            "engine_kind": engine.kind,
            "max_seq_len": values["max_seq_len"],
            **engine.list_prompt_parameters(),
        },
        max_batch_size=0,
        is_decoupled=is_decoupled,
        files={"model.yaml": arguments},
    )
    return (model,)


def list_llmapi_parameters(
    values: Mapping[str, str], core_parameters: Mapping[str, str]
) -> set[str]:
    """Return the names of the parameters that have an effect in this layout."""
    keys = set(_arguments(values, core_parameters))
    arguments = {each.name for each in load_parameters().values() if keys.intersection(each.keys)}
    return arguments.union(_TRITON_CONFIG)


def _arguments(values: Mapping[str, str], core_parameters: Mapping[str, str]) -> dict[str, str]:
    arguments = {key: value for key, value in core_parameters.items() if key not in _NOT_ARGUMENTS}
    return arguments | {name: values[name] for name in _TOKENIZER_PARAMETERS}
