"""Read adapter folders in PEFT format or TensorRT-LLM format (two `.npy` files)."""

from __future__ import annotations

import json
import math
import re
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .adapter import Adapter, Array, BadAdapter, LowRank, Sites, decode_adapter
from .file_names import LORA_CONFIG, LORA_WEIGHTS, PEFT_CONFIG, PEFT_WEIGHTS
from .safetensors import read_safetensors

_PREFIX = "base_model.model."
_TENSOR = re.compile(rf"(?:{re.escape(_PREFIX)})?(.+)\.lora_([AB])(?:\.[^.]+)?\.weight")
# Maps each unsupported option in adapter_config.json to the feature that it enables. The matrices A
# and B and the scaling cannot represent these features.
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "lora_bias": "trained biases",
    "modules_to_save": "fully trained modules",
    "trainable_token_indices": "trained embeddings",
    "target_parameters": "parameters outside of linear layers",
    "layer_replication": "repeated layers",
}
# If init_lora_weights starts with one of these values, PEFT modifies the base weights before
# training. The adapter does not work with the original base weights.
_CHANGED_BASE = ("pissa", "olora", "corda")


def read_adapter(folder: Path, sites: Sites) -> Adapter:
    """Return the adapter in `folder`, which is in PEFT or TensorRT-LLM format.

    Raise `BadAdapter` if the adapter is invalid, or `OSError` if a file cannot be read.
    """
    if (folder / LORA_CONFIG).exists():
        weights = _drop_batch_dimension(read_npy(folder / LORA_WEIGHTS))
        return decode_adapter(weights, _drop_batch_dimension(read_npy(folder / LORA_CONFIG)), sites)
    if (folder / PEFT_CONFIG).exists():
        return read_peft(folder)
    raise BadAdapter(
        f"{folder} does not contain an adapter; add either {LORA_CONFIG} and {LORA_WEIGHTS}, or "
        f"{PEFT_CONFIG} and {PEFT_WEIGHTS}"
    )


def read_npy(path: Path) -> Array:
    """Return the array in `path`.

    Raise `BadAdapter` if the file is not a valid array, or `OSError` if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            # Unlike `np.load`, this function reads no archives.
            array: Array = np.lib.format.read_array(  # type: ignore[no-untyped-call]
                file, allow_pickle=False
            )
            return array
    # NumPy parses the header as Python code.
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise BadAdapter(
            f"{path} is not a valid NumPy array: {error}; convert the adapter again"
        ) from error


def read_peft(folder: Path) -> dict[str, LowRank]:
    """Return the PEFT adapter in `folder`, converted to float32.

    Raise `BadAdapter` if the adapter is invalid, or `OSError` if a file cannot be read.
    """
    if not (folder / PEFT_WEIGHTS).exists() and (folder / "adapter_model.bin").exists():
        raise BadAdapter(
            f"{folder} contains pickled weights (adapter_model.bin), which can execute code; save "
            f"the adapter as {PEFT_WEIGHTS} (PEFT: save_pretrained(…, safe_serialization=True))"
        )
    config = _read_config(folder / PEFT_CONFIG)
    try:
        tensors = read_safetensors(folder / PEFT_WEIGHTS)
    except ValueError as error:
        raise BadAdapter(str(error)) from error
    halves: dict[str, dict[str, Array]] = {}
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise BadAdapter(
                f"{folder / PEFT_WEIGHTS} contains {name}, which is not a LoRA tensor; use an "
                "adapter that contains only lora_A and lora_B weights"
            )
        halves.setdefault(match[1], {})[match[2]] = tensor
    if not halves:
        raise BadAdapter(
            f"{folder / PEFT_WEIGHTS} contains no tensors; save the adapter again with PEFT"
        )
    return {module: _combine(module, pair, config) for module, pair in halves.items()}


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadAdapter(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type", "LORA") != "LORA":
        raise BadAdapter(
            f"{path} is not a LoRA adapter configuration; use an adapter whose configuration is a "
            "JSON object whose peft_type is LORA"
        )
    for option, meaning in _UNSUPPORTED.items():
        if config.get(option):
            raise BadAdapter(
                f"{path} sets {option}, but adapters with {meaning} are not supported; use a plain "
                "LoRA adapter"
            )
    if config.get("bias", "none") != "none":
        raise BadAdapter(
            f"{path} sets bias to {config['bias']!r}, but adapters with trained biases are not "
            "supported; use a plain LoRA adapter"
        )
    if str(config.get("init_lora_weights", "")).lower().startswith(_CHANGED_BASE):
        raise BadAdapter(
            f"{path} sets init_lora_weights to {config['init_lora_weights']!r}, so the adapter "
            "requires modified base weights; convert the adapter to plain LoRA with PEFT"
        )
    return config


def _combine(module: str, pair: Mapping[str, Array], config: Mapping[str, Any]) -> LowRank:
    if len(pair) != 2 or any(each.ndim != 2 for each in pair.values()):
        shapes = ", ".join(f"lora_{half} {list(pair[half].shape)}" for half in sorted(pair))
        raise BadAdapter(
            f"{module} must have one lora_A and one lora_B, each with two dimensions, but has "
            f"{shapes}; save the adapter again with PEFT"
        )
    a, b = pair["A"], pair["B"]
    rank = len(a)
    if not rank or b.shape[1] != rank:
        raise BadAdapter(
            f"{module} has lora_A of shape {list(a.shape)} and lora_B of shape "
            f"{list(b.shape)}; the shapes must be [r, in] and [out, r]"
        )
    alpha = _alpha(module, config)
    scaling = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return LowRank(a, b * np.float32(scaling))


def _alpha(module: str, config: Mapping[str, Any]) -> float:
    """Return the alpha of `module` from `alpha_pattern`, or `lora_alpha` if no pattern matches.

    A pattern must match the whole module name, or the part of the name after a dot.
    """
    try:
        for pattern, alpha in (config.get("alpha_pattern") or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                return float(alpha)
        return float(config["lora_alpha"])
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, re.error) as error:
        raise BadAdapter(
            f"{PEFT_CONFIG} contains no valid alpha for {module}; correct lora_alpha or "
            "alpha_pattern"
        ) from error


def _drop_batch_dimension(array: Array) -> Array:
    """Remove the batch dimension if it exists and its length is 1.

    TensorRT-LLM's files contain request tensors, whose first dimension is the batch.
    """
    return array[0] if array.ndim == 3 and len(array) == 1 else array
