"""Read the configs of models from stdin, and write the parameter counts of Transformers' models."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trtllm_serve_cli.sizing.shape import parse_shape


def _count(config: dict[str, Any]) -> int:
    text = dict(config.get("text_config", config))
    for key in ("quantization_config", "architectures"):
        text.pop(key, None)
    tied = parse_shape(config).tie_word_embeddings
    kind = AutoConfig.for_model(**{**text, "tie_word_embeddings": tied})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(kind)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    configs_by_name = json.load(sys.stdin)
    json.dump({name: _count(config) for name, config in configs_by_name.items()}, sys.stdout)
