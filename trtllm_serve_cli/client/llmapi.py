"""Translate the input names of text models to the names in the llmapi layout.

A text model named `tensorrt_llm` has the llmapi layout, because the model with this name in the
inflight layout does not accept text. Tensors in the llmapi layout do not have a batch dimension.
Source of the names: triton_backend/all_models/llmapi in NVIDIA/TensorRT-LLM@c8c6df08.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType

from trtllm_serve_cli.errors import BadInput

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


def name_inputs(model: str, names: Iterable[str]) -> dict[str, str]:
    """Return a mapping from each input to the name of its tensor in `model`.

    For an llmapi model, omit the inputs that request token counts, because the responses always
    include the counts. Raise `BadInput` if the model does not have a tensor for any other input.
    """
    if model != LLMAPI_MODEL:
        return {name: name for name in names}
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


def shape_input(model: str, shape: Sequence[int]) -> list[int]:
    """Return `shape`, without the batch dimension if `model` has the llmapi layout."""
    return list(shape[1:] if model == LLMAPI_MODEL else shape)
