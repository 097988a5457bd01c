"""What the text model of the llmapi layout calls the inputs that the other layout's models have.

That model is known by its name: in the other layout, `tensorrt_llm` takes no text. Its tensors have
no batch dimension. Source of the names: triton_backend/all_models/llmapi of
NVIDIA/TensorRT-LLM@c8c6df08.
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
    """Of the inputs `names`, those to send -> what `model` calls them.

    Raises `BadInput` for what it has no tensor for; counts of tokens, which every answer brings
    along where they are known, are not worth that.
    """
    if model != LLMAPI_MODEL:
        return {name: name for name in names}
    named = {}
    for name in names:
        if name in _NAMES:
            named[name] = _NAMES[name]
        elif name not in _COUNTS:
            raise BadInput(
                f"{name} cannot be asked of {model}.",
                why="its layout, llmapi, has no tensor for it",
                next_step="leave it out, or import the model with --layout inflight",
            )
    return named


def shape_input(model: str, shape: Sequence[int]) -> list[int]:
    """`shape`, which has a batch dimension, as `model` wants it."""
    return list(shape[1:] if model == LLMAPI_MODEL else shape)
