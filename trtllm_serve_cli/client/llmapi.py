"""Translate a request's inputs to the served model's tensor names.

Two inputs have different names in TensorRT-LLM 0.19 and earlier. A text model named `tensorrt_llm`
has the llmapi layout, because the model with this name in the inflight layout does not accept text.
Tensors in the llmapi layout do not have a batch dimension. Sources of the names:
triton_backend/all_models/llmapi in NVIDIA/TensorRT-LLM@c8c6df08, and
triton-inference-server/tensorrtllm_backend@c2e65b8.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from types import MappingProxyType

from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.client.vllm import has_vllm_inputs
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.triton.core_inputs import EXCLUDE_INPUT

LLMAPI_MODEL = "tensorrt_llm"
_NAMES = MappingProxyType(
    {
        "text_input": "text_input",
        "stream": "streaming",
        "max_tokens": "sampling_param_max_tokens",
        "temperature": "sampling_param_temperature",
        "top_k": "sampling_param_top_k",
        "top_p": "sampling_param_top_p",
        "seed": "sampling_param_seed",
        "stop_words": "sampling_param_stop",
        "presence_penalty": "sampling_param_presence_penalty",
        "frequency_penalty": "sampling_param_frequency_penalty",
        "exclude_input_in_output": "sampling_param_exclude_input_from_output",
        "return_perf_metrics": "sampling_param_return_perf_metrics",
    }
)
_COUNTS = ("return_num_input_tokens", "return_num_output_tokens")
# Inputs that the mapping omits if the model lacks them, because the client does not depend on them.
# A model without the `stream` input does not stream its responses.
_DISPENSABLE = (*_COUNTS, EXCLUDE_INPUT, "stream")
_OLD_NAMES = MappingProxyType({"seed": "random_seed", "min_tokens": "min_length"})


def name_inputs(
    model: str, names: Iterable[str], inputs: Container[str], version: str = ""
) -> dict[str, str]:
    """Return a mapping from each input to the name of its tensor in `model`.

    `inputs` are the inputs in the model's configuration. `version` is the engine's TensorRT-LLM
    version, or empty if it is unknown. If the model lacks `stream`, `exclude_input_in_output` or an
    input for token counts, the mapping omits this input. Raise `BadInput` if the model lacks any
    other input.
    """
    if model == LLMAPI_MODEL:
        return _name_llmapi_inputs(model, names)
    return name_inflight_inputs(model, names, inputs, version)


def name_inflight_inputs(
    model: str, names: Iterable[str], inputs: Container[str], version: str = ""
) -> dict[str, str]:
    """Return a mapping from each input to the name of its tensor in the inflight or the gpt layout.

    Unlike `name_inputs`, do not assume that a model named `tensorrt_llm` has the llmapi layout.
    """
    named = {}
    for name in names:
        if name in inputs:
            named[name] = name
        elif _OLD_NAMES.get(name) in inputs:
            named[name] = _OLD_NAMES[name]
        elif name not in _DISPENSABLE:
            raise _missing_input(model, name, version)
    return named


def returns_prompt(info: ModelInfo, request: GenerateRequest) -> bool:
    """Return whether the response begins with the prompt even though the request excludes it.

    In TensorRT-LLM 0.15 and earlier, NVIDIA's text models do not have the `exclude_input_in_output`
    input. Their responses begin with the prompt unless they are streamed.
    """
    can_exclude = EXCLUDE_INPUT in info.inputs or info.excludes_input
    is_upstreams = info.name != LLMAPI_MODEL and not has_vllm_inputs(info.inputs)
    return (
        request.exclude_input_in_output and not request.stream and is_upstreams and not can_exclude
    )


def _missing_input(model: str, name: str, version: str) -> BadInput:
    """Return the error for a request with an input that the model lacks."""
    # Import lazily, because loading the table of NVIDIA's model inputs takes about 0.1 s.
    from trtllm_serve_cli.repository.model.contract import find_first_version

    first = find_first_version("ensemble", name) if version else None
    if first is None:
        why, later = "the model's configuration does not contain this input", ""
    else:
        why = f"the engine was built with TensorRT-LLM {version}, but {name} was added in {first}"
        later = f", or build the engine with TensorRT-LLM {first} or later"
    return BadInput(f"{model} does not support {name}.", why=why, next_step=f"omit {name}{later}")


def _name_llmapi_inputs(model: str, names: Iterable[str]) -> dict[str, str]:
    """Return a mapping from each input to the name of its tensor in an llmapi model.

    The inputs that request token counts are omitted, because responses always include the counts.
    """
    named = {}
    for name in names:
        if name in _NAMES:
            named[name] = _NAMES[name]
        elif name not in _COUNTS:
            raise BadInput(
                f"{model} does not support {name}.",
                why=f"the llmapi layout does not have a tensor for {name}",
                next_step=f"omit {name}, or import the model with --layout inflight",
            )
    return named


def shape_input(model: str, inputs: Container[str], shape: Sequence[int]) -> list[int]:
    """Return `shape`, without the batch dimension if `model` has the llmapi or the vllm layout."""
    has_batch = model != LLMAPI_MODEL and not has_vllm_inputs(inputs)
    return list(shape if has_batch else shape[1:])
