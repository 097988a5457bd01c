"""Import the models that the soak test serves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from simulated import DEMO, import_simulated
from soak_cases import Profile

from trtllm_serve_cli.importing.declaration import Declaration, ModelSection, RepositorySection
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.runtime.lora.safetensors import write_safetensors

STEP_MS = 20
ADAPTERS = ("poet", "clerk")
# The shape of the demo model.
_NUM_LAYERS, _HIDDEN, _RANK = 30, 576, 4


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine to test, with its load. `rate_per_s` is the mean rate of all clients.

    The memory of the engine worker may grow by `worker_growth_mb` after the warm-up.
    """

    profile: Profile
    num_clients: int
    rate_per_s: float
    worker_growth_mb: float = 0.0


ENGINES = {
    "sim": Engine(Profile("soak-sim", is_exact=True, max_tokens=60), 12, 10.0),
    # OpenVINO's buffers grow by about 40 MB with the first 60 requests to an engine. Each adapter
    # has its own engine, which receives 60 requests in 20 minutes.
    "openvino": Engine(
        Profile("soak-openvino", False, 24, adapters=ADAPTERS, has_guides=True), 4, 1.5, 80.0
    ),
}


def import_engine(name: str, home: Home) -> dict[str, Any]:
    """Import the model of an engine, and return the launch options that it requires."""
    model = ENGINES[name].profile.model
    if name == "sim":
        import_simulated(home, model, STEP_MS, max_batch_size=32)
        return {}
    folder = home.root / "soak-adapters"
    for seed, adapter in enumerate(ADAPTERS):
        write_adapter(folder / adapter, seed)
    parameters = {
        "lora_prefetch_dir": str(folder),
        "max_loras": str(len(ADAPTERS)),
        # Use a small cache, so that all its memory is in use after the warm-up.
        "max_tokens_in_paged_kv_cache": "1024",
    }
    section = RepositorySection(parameters=parameters)
    import_model(Declaration(ModelSection(model, DEMO), repository=section), home)
    return {"runtime_lora_dir": folder}


def write_adapter(folder: Path, seed: int) -> None:
    """Write a small random adapter in PEFT's format."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(_NUM_LAYERS):
        module = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for name, shape in (("lora_A", (_RANK, _HIDDEN)), ("lora_B", (_HIDDEN, _RANK))):
            values = rng.standard_normal(shape).astype(np.float32) * 0.05
            tensors[f"{module}.{name}.weight"] = values
    (folder / "adapter_model.safetensors").write_bytes(write_safetensors(tensors))
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _RANK, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
