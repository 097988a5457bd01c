"""Determine the names and data types of request tensors from the model's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_serve_cli.client.generate import GenerateRequest, RawTensor
from trtllm_serve_cli.client.llmapi import name_inputs
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.client.transport.tensors import (
    INPUTS,
    WORD_LISTS,
    Datatype,
    Value,
    plan_inputs,
    plan_parameters,
)
from trtllm_serve_cli.client.vllm import SAMPLING_INPUT, has_vllm_inputs, plan_vllm_inputs
from trtllm_serve_cli.errors import BadInput

# The input of models in the llmapi and the vllm layout that requests `finish_reason`.
_FINISH_REASON = "return_finish_reason"
_VLLM_TYPES: dict[str, Datatype] = {
    SAMPLING_INPUT: "BYTES",
    "return_cumulative_logprob": "BOOL",
    "return_logprobs": "BOOL",
}


@dataclass(frozen=True, slots=True)
class ServedInput:
    """The value of an input tensor, and its type in the model's configuration."""

    datatype: Datatype
    value: Value


def plan_served_inputs(info: ModelInfo, request: GenerateRequest) -> dict[str, ServedInput]:
    """Return the inputs to send, keyed by tensor name.

    If the model can return finish reasons, request them. Raise `BadInput` if a value does not fit
    its tensor, or if the model lacks an input.
    """
    if "text_input" not in info.inputs:
        raise BadInput(
            f"{info.name} does not accept text.",
            why="the model's configuration does not contain the input text_input",
            next_step="select a model that accepts text with -m, for example -m ensemble",
        )
    plan = _plan_vllm if has_vllm_inputs(info.inputs) else _plan_named
    reported = {_FINISH_REASON: ServedInput("BOOL", True)} if _FINISH_REASON in info.inputs else {}
    return plan(info, request) | reported


def _plan_vllm(info: ModelInfo, request: GenerateRequest) -> dict[str, ServedInput]:
    values = plan_inputs(request) | plan_parameters(request)
    served = plan_vllm_inputs(info.name, values, info.inputs)
    return {
        name: ServedInput(_VLLM_TYPES.get(name) or INPUTS[name], value)
        for name, value in served.items()
    }


def _plan_named(info: ModelInfo, request: GenerateRequest) -> dict[str, ServedInput]:
    values = plan_inputs(request)
    # Send an empty word, which the model ignores, for each required word list that the request does
    # not set.
    values |= {name: ("",) for name in WORD_LISTS & info.required_inputs if name not in values}
    weights = values.get("lora_weights")
    if isinstance(weights, RawTensor) and info.lora_datatype != INPUTS["lora_weights"]:
        from trtllm_serve_cli.client.lora import convert_weights

        values["lora_weights"] = convert_weights(weights, info.lora_datatype)
    names = name_inputs(info.name, values, info.inputs, info.tensorrt_llm_version)
    return {
        served_name: ServedInput(_find_type(info, served_name, INPUTS[name]), values[name])
        for name, served_name in names.items()
    }


def plan_served_parameters(info: ModelInfo, request: GenerateRequest) -> dict[str, str]:
    """Return the request parameters to send. Raise `BadInput` if a value is invalid."""
    return {} if has_vllm_inputs(info.inputs) else plan_parameters(request)


def _find_type(info: ModelInfo, name: str, default: Datatype) -> Datatype:
    """Return the type that the model's configuration declares for the input `name`.

    For the oldest versions of TensorRT-LLM, some integer inputs have the type UINT32.
    """
    if name == "lora_weights":
        return info.lora_datatype
    is_unsigned = default == "INT32" and name in info.unsigned_inputs
    return "UINT32" if is_unsigned else default
