"""Translate a request's inputs to the inputs of a model in the vllm layout.

The model receives all sampling parameters as JSON in one input. Its tensors do not have a batch
dimension. Sources: src/utils/request.py in triton-inference-server/vllm_backend@8de0c14, and
vllm/sampling_params.py in vllm-project/vllm (0.26).
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from trtllm_serve_cli.errors import BadInput

SAMPLING_INPUT = "sampling_parameters"
# Maps inputs of text models in the inflight layout, and `lora_name`, to the names of vLLM's
# sampling parameters.
_PARAMETERS = MappingProxyType(
    {
        "max_tokens": "max_tokens",
        "min_tokens": "min_tokens",
        "temperature": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "seed": "seed",
        "stop_words": "stop",
        "bad_words": "bad_words",
        "repetition_penalty": "repetition_penalty",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "num_return_sequences": "n",
        "lora_name": "lora_name",
    }
)
_TENSORS = ("text_input", "stream")
_OPTIONAL_TENSORS = (
    "exclude_input_in_output",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
_LOG_PROBS = ("return_cumulative_logprob", "return_logprobs")


def has_vllm_inputs(inputs: Container[str]) -> bool:
    """Return whether a model with these inputs has the vllm layout."""
    return SAMPLING_INPUT in inputs


def plan_vllm_inputs(
    model: str, values: Mapping[str, Any], inputs: Container[str]
) -> dict[str, Any]:
    """Return the tensor values to send to `model`, keyed by tensor name.

    `values` contains inputs of a text model in the inflight layout, and optionally `lora_name`.
    `inputs` contains the names of the model's inputs. Omit the optional tensors that the model
    lacks. Raise `BadInput` for any other value that the model does not support.
    """
    served: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    for name, value in values.items():
        if name in _PARAMETERS:
            parameters[_PARAMETERS[name]] = list(value) if isinstance(value, tuple) else value
        elif name in _TENSORS or (name in _OPTIONAL_TENSORS and name in inputs):
            served[name] = value
        elif name == "return_log_probs" and all(each in inputs for each in _LOG_PROBS):
            parameters["logprobs"] = 0
            served |= dict.fromkeys(_LOG_PROBS, True)
        elif name not in _OPTIONAL_TENSORS and (name, value) != ("beam_width", 1):
            raise BadInput(
                f"{model} does not support {name}.",
                why=f"the vllm layout does not have an input or sampling parameter for {name}",
                next_step=f"omit {name}, or import the model with --layout inflight",
            )
    return served | {SAMPLING_INPUT: json.dumps(parameters)}


def parse_log_probs(texts: Sequence[str]) -> list[tuple[float, ...]]:
    """Return the log probabilities of the generated tokens in each sequence.

    `texts` contains the JSON of each sequence: null, or a list with the tokens of each step. The
    first token of a step is the generated token. Raise `ValueError`, `LookupError`,
    `AttributeError` or `TypeError` for any other content.
    """
    return [tuple(map(_read_log_prob, json.loads(text) or ())) for text in texts]


def _read_log_prob(step: Mapping[str, Any]) -> float:
    generated, *_ = step.values()
    return float(generated["logprob"])
