"""Synthetic LoRA adapters and their folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_serve_cli.runtime.lora.adapter import Adapter, LowRank, Sites
from trtllm_serve_cli.runtime.lora.file_names import LORA_CONFIG, LORA_WEIGHTS
from trtllm_serve_cli.runtime.lora.safetensors import write_safetensors

# Two layers of a model: module -> (output features, input features).
SITES: Sites = {
    f"model.layers.{layer}.{name}": size
    for layer in range(2)
    for name, size in {
        "self_attn.q_proj": (8, 8),
        "self_attn.k_proj": (4, 8),
        "self_attn.v_proj": (4, 8),
        "self_attn.o_proj": (8, 8),
        "mlp.gate_proj": (12, 8),
        "mlp.up_proj": (12, 8),
        "mlp.down_proj": (8, 12),
    }.items()
}


def make_adapter(
    sites: Sites, modules: Iterable[str] = (), *, seed: int = 0, rank: int = 2, scale: float = 1.0
) -> Adapter:
    """Return random A and B, rounded to 16 bits, for `modules` of `sites` (default: all)."""
    rng = np.random.default_rng(seed)

    def random(*shape: int) -> Any:
        half = (rng.standard_normal(shape) * scale).astype(np.float16)
        return half.astype(np.float32)

    return {
        module: LowRank(random(rank, num_in), random(num_out, rank))
        for module, (num_out, num_in) in sites.items()
        if not modules or module.rpartition(".")[2] in modules
    }


def as_lists(adapter: Adapter) -> dict[str, Any]:
    """Convert an adapter to lists, which `==` can compare."""
    return {module: (each.a.tolist(), each.b.tolist()) for module, each in sorted(adapter.items())}


def write_peft(folder: Path, adapter: Adapter, config: Mapping[str, Any] | None = None) -> Path:
    """Write a PEFT adapter to `folder`; `r` equals `lora_alpha` unless `config` overrides it."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for module, change in adapter.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = change.a
        tensors[f"base_model.model.{module}.lora_B.weight"] = change.b
    (folder / "adapter_model.safetensors").write_bytes(write_safetensors(tensors))
    rank = max((len(each.a) for each in adapter.values()), default=1)
    facts = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", **(config or {})}
    (folder / "adapter_config.json").write_text(json.dumps(facts))
    return folder


def write_converted(
    folder: Path, dtype: str = "float16", num_rows: int = 2, first: int = 1
) -> Path:
    """Write a small adapter as `hf_lora_convert.py` does: the two tensors of a request.

    `first` is the first weight, from which the fakes of TensorRT-LLM compute the tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / LORA_WEIGHTS, np.arange(first, first + 8, dtype=dtype).reshape(1, 2, 4))
    np.save(folder / LORA_CONFIG, np.ones((1, num_rows, 3), dtype=np.int32))
    return folder
