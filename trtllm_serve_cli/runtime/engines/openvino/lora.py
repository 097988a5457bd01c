"""Find an OpenVINO model's linear layers and apply LoRA adapters to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from ...lora.adapter import Adapter, BadAdapter, Sites
from ...lora.safetensors import write_safetensors

# In models exported from PyTorch or converted from GGUF, node names start with this prefix,
# followed by the module name.
_PREFIX = "__module."


def site_finder(config: Mapping[str, Any]) -> Callable[[], Sites]:
    """Return a function that finds the engine's linear layers and caches the result.

    The function raises `BadAdapter` if the engine's layers have no names.
    """
    return cache(lambda: _find_sites(Path(config["engine_dir"])))


def adapter_properties(adapter: Adapter) -> dict[str, Any]:
    """Return the properties for a pipeline that applies `adapter`.

    The model must contain all modules that the adapter changes. OpenVINO GenAI applies the adapter
    in static mode: it adds the adapter's weights to the model as constants. The other modes do not
    work: fusing requires uncompressed weights, and continuous batching does not apply dynamic
    adapters (observed with OpenVINO GenAI 2026.4.1).
    """
    tensors = {}
    for module, change in adapter.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = change.a
        tensors[f"base_model.model.{module}.lora_B.weight"] = change.b
    file = np.frombuffer(write_safetensors(tensors), dtype=np.uint8)
    genai_adapter = openvino_genai.Adapter(openvino.Tensor(file))
    mode = openvino_genai.AdapterConfig.Mode.MODE_STATIC
    return {"adapters": openvino_genai.AdapterConfig(genai_adapter, mode=mode)}


def _find_sites(engine_dir: Path) -> Sites:
    model = openvino.Core().read_model(engine_dir / "openvino_model.xml")
    sites: dict[str, tuple[int, int]] = {}
    for node in model.get_ops():
        name = node.get_friendly_name()
        if node.get_type_name() != "MatMul" or not name.startswith(_PREFIX):
            continue
        shape = node.input_value(1).get_partial_shape()
        if shape.is_static and len(shape) == 2 and node.get_attributes()["transpose_b"]:
            num_out, num_in = shape.to_shape()
            sites[name.removeprefix(_PREFIX).partition("/")[0]] = (num_out, num_in)
    if not sites:
        raise BadAdapter(
            "the layers of this model's engine have no names, so LoRA adapters cannot be applied; "
            "rebuild the engine with `tllm import --force` or `tllm build --force`"
        )
    return sites
