"""Convert between `config.pbtxt` parameters and the `model.json` of the vllm layout.

`model.json` contains the engine's arguments. Arguments that also exist in vLLM have vLLM's names.
Other arguments have the names of parameters in `config.pbtxt`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .parameters import parse_scalar

# Maps each vLLM argument to the parameter in `config.pbtxt`.
_PARAMETERS = {
    "model": "gpt_model_path",
    "tokenizer": "tokenizer_dir",
    "max_model_len": "max_seq_len",
    "max_num_batched_tokens": "max_num_tokens",
    "enable_prefix_caching": "enable_kv_cache_reuse",
}
_ARGUMENTS = {parameter: argument for argument, parameter in _PARAMETERS.items()}


def as_parameters(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Convert `arguments` from a `model.json` to parameters for `config.pbtxt`.

    Omit arguments whose value is null.
    """
    return {
        _PARAMETERS.get(name, name): value if isinstance(value, str) else json.dumps(value)
        for name, value in arguments.items()
        if value is not None
    }


def render_model_json(parameters: Mapping[str, str]) -> str:
    """Convert `parameters` to arguments and return the text of a `model.json`."""
    arguments = {
        _ARGUMENTS.get(name, name): parse_scalar(value) for name, value in parameters.items()
    }
    return json.dumps(arguments, indent=2) + "\n"
