"""Check LoRA adapters and convert them to and from NVIDIA's request tensors.

Each row of `lora_config` describes one adapted module by its module id, layer and adapter size r.
The corresponding row of `lora_weights` contains the module's weights: A [r, in], followed by B
[out, r] multiplied by the scaling. Shorter rows of `lora_weights` are padded with zeros to the
length of the longest row. The layout, ids and names are from examples/hf_lora_convert.py and
tensorrt_llm/lora_manager.py in NVIDIA/TensorRT-LLM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .safetensors import narrow_to_bfloat16, widen_bfloat16

Array = np.ndarray[Any, np.dtype[Any]]
# Maps the name of each adaptable module to (output features, input features).
Sites = Mapping[str, tuple[int, int]]

# Maps each module name in Hugging Face models to TensorRT-LLM's module id. TensorRT-LLM's module
# names differ, for example mlp_h_to_4h for gate_proj.
_MODULE_IDS = {
    "qkv_proj": 0,
    "query_key_value": 0,
    "q_proj": 1,
    "k_proj": 2,
    "v_proj": 3,
    "o_proj": 4,
    "dense": 4,
    "gate_proj": 5,
    "gate_up_proj": 5,
    "c_fc": 5,
    "down_proj": 6,
    "c_proj": 6,
    "up_proj": 7,
}
_ID_NAMES = (
    "attn_qkv", "attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate"
)  # fmt: skip
# The fused gate and up projection. TensorRT-LLM stores the two halves of its B matrix in reverse
# order.
_SWAPPED = "gate_up_proj"
_MODULE = re.compile(r"(?:.*\.)?layers\.([0-9]{1,9})\.(?:self_attn|mlp)\.([a-z_]+)")
# The valid numbers of columns in `lora_config`. Older clients omit the fourth column, which marks
# DoRA adapters.
_CONFIG_COLUMNS = (3, 4)
# The NumPy type of bfloat16 values in a `.npy` file: two untyped bytes.
BFLOAT16 = np.dtype("V2")


class BadAdapter(ValueError):
    """Raised if an adapter cannot be used. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """A low-rank change to one module's weights: the matrix product of `b` and `a`.

    `a` has shape [r, in]. `b` has shape [out, r] and includes the scaling.
    """

    a: Array
    b: Array


# Maps the name of each adapted module, for example model.layers.0.mlp.up_proj, to the change of its
# weights.
Adapter = Mapping[str, LowRank]


def encode_adapter(adapter: Adapter, dtype: str = "float16") -> tuple[Array, Array]:
    """Return the `lora_weights` and `lora_config` tensors for `adapter`.

    `dtype` is the type of `lora_weights`: a NumPy type name or bfloat16. `lora_config` has three
    columns. Raise `BadAdapter` if the adapter changes no modules, if TensorRT-LLM has no id for a
    module, or if a value is not finite in `dtype`.
    """
    check_not_empty(adapter)
    rows = sorted((*_layer_and_id(module), module) for module in adapter)
    flat = [_flatten(module, adapter[module]) for _, _, module in rows]
    weights = np.zeros((len(rows), max(map(len, flat))), dtype=np.float32)
    for row, values in zip(weights, flat, strict=True):
        row[: len(values)] = values
    config = [(kind, layer, len(adapter[module].a)) for layer, kind, module in rows]
    return narrow_weights(weights, dtype), np.array(config, dtype=np.int32)


def check_not_empty(adapter: Adapter) -> None:
    """Raise `BadAdapter` if the adapter changes no modules."""
    if not adapter:
        raise BadAdapter("the adapter changes no modules; use an adapter with at least one module")


def decode_adapter(weights: Array, config: Array, sites: Sites) -> dict[str, LowRank]:
    """Convert `weights` and `config` to a float32 adapter for a model with the modules in `sites`.

    If a tensor is invalid or does not fit the model, raise a `BadAdapter` that names the tensor.
    """
    check_shapes(weights, config)
    values = widen_weights(weights)
    places = {place: module for module in sites if (place := _find_place(module))}
    adapter: dict[str, LowRank] = {}
    for index, (row, entry) in enumerate(zip(values, config.tolist(), strict=True)):
        module = _module_of(index, entry, places)
        if module in adapter:
            raise BadAdapter(f"lora_config has several rows for {module}; send one row per module")
        adapter[module] = _unflatten(index, row, module, entry[2], sites[module])
    return adapter


def widen_weights(weights: Array) -> Array:
    """Return `weights` in a type that supports NumPy arithmetic.

    Convert bfloat16 values, which NumPy reads from a `.npy` file as untyped bytes, to float32.
    """
    return widen_bfloat16(weights.view(np.uint16)) if weights.dtype == BFLOAT16 else weights


def narrow_weights(weights: Array, dtype: str) -> Array:
    """Convert `weights` to `dtype`, which is a NumPy type name or bfloat16.

    Raise `BadAdapter` if a value is NaN or infinite, or too large for `dtype`.
    """
    if not np.isfinite(weights).all():
        raise BadAdapter("the adapter contains NaN or infinity")
    if dtype == "bfloat16":
        bits = narrow_to_bfloat16(weights)
        narrow, values = bits.view(BFLOAT16), widen_bfloat16(bits)
    else:
        with np.errstate(over="ignore"):
            narrow = values = weights.astype(dtype)
    if not np.isfinite(values).all():
        raise BadAdapter(f"the adapter contains values that are too large for {dtype}")
    return narrow


def check_shapes(weights: Array, config: Array) -> None:
    """Raise `BadAdapter` if an adapter's tensors have invalid types or shapes."""
    if config.ndim != 2 or config.shape[1] not in _CONFIG_COLUMNS or not len(config):
        raise BadAdapter(
            f"lora_config has shape {list(config.shape)}; send a tensor of shape [n, 3] with one "
            "row (module id, layer, adapter size) per adapted module"
        )
    if config.dtype.kind not in "iu":
        raise BadAdapter(f"lora_config has type {config.dtype}; send INT32 values")
    if weights.ndim != 2 or len(weights) != len(config):
        raise BadAdapter(
            f"the adapter's lora_weights have shape {list(weights.shape)}; send one row of weights "
            f"for each of the {len(config)} rows of lora_config, padded to the same length"
        )
    if weights.dtype.kind != "f" and weights.dtype != BFLOAT16:
        raise BadAdapter(f"lora_weights has type {weights.dtype}; send FP16 values")


def check_adapter(adapter: Adapter, sites: Sites, max_rank: int) -> None:
    """Raise `BadAdapter` if `adapter` does not fit a model with the modules in `sites`.

    Also raise `BadAdapter` if the weights contain NaN or infinity, or if a module's rank is not
    between 1 and `max_rank`.
    """
    for module, change in adapter.items():
        if module not in sites:
            raise BadAdapter(
                f"the adapter changes {module}, which this model does not have; use an adapter "
                f"that changes only these modules: {_describe(sites)}"
            )
        rank = len(change.a)
        if not 1 <= rank <= max_rank:
            raise BadAdapter(
                f"the adapter for {module} has rank {rank}, but this server accepts only ranks "
                f"from 1 to {max_rank} (lora_cache_max_adapter_size); use an adapter with an "
                "accepted rank"
            )
        features = (len(change.b), change.a.shape[1])
        if features != sites[module]:
            raise BadAdapter(
                f"the adapter for {module} has {features[1]} input features and {features[0]} "
                f"output features, but this model's module has {sites[module][1]} and "
                f"{sites[module][0]}; use an adapter for this model"
            )
        if not (np.isfinite(change.a).all() and np.isfinite(change.b).all()):
            raise BadAdapter(
                f"the adapter for {module} contains NaN or infinity; use an adapter with finite "
                "weights"
            )


def _layer_and_id(module: str) -> tuple[int, int]:
    match = _MODULE.fullmatch(module)
    if match is None or match[2] not in _MODULE_IDS:
        raise BadAdapter(
            f"the adapter changes {module}, which has no module id in TensorRT-LLM; use an "
            f"adapter that changes only these layer modules: {', '.join(_MODULE_IDS)}"
        )
    return int(match[1]), _MODULE_IDS[match[2]]


def _find_place(module: str) -> tuple[int, int] | None:
    match = _MODULE.fullmatch(module)
    return (int(match[1]), _MODULE_IDS[match[2]]) if match and match[2] in _MODULE_IDS else None


def _module_of(index: int, entry: list[int], places: Mapping[tuple[int, int], str]) -> str:
    kind, layer, rank = entry[:3]
    if any(entry[3:]):
        raise BadAdapter(
            f"lora_config row {index} uses DoRA, which is not supported; send a plain LoRA adapter"
        )
    if not 0 <= kind < len(_ID_NAMES):
        raise BadAdapter(
            f"lora_config row {index} has module id {kind}; send an id from 0 ({_ID_NAMES[0]}) "
            f"to {len(_ID_NAMES) - 1} ({_ID_NAMES[-1]})"
        )
    if rank < 1:
        raise BadAdapter(
            f"lora_config row {index} has adapter size {rank}; send a size of at least 1"
        )
    if not places:
        raise BadAdapter(
            f"lora_config row {index} is for module {kind} ({_ID_NAMES[kind]}) of layer {layer}, "
            "but none of this model's modules has a module id; use an adapter in PEFT's format"
        )
    module = places.get((layer, kind))
    if module is None:
        kinds = ", ".join(f"{each} ({_ID_NAMES[each]})" for each in sorted({k for _, k in places}))
        layers = [each for each, _ in places]
        raise BadAdapter(
            f"lora_config row {index} is for module {kind} ({_ID_NAMES[kind]}) of layer {layer}, "
            f"which this model does not have; send rows for the modules {kinds} of layers 0 to "
            f"{max(layers)}"
        )
    return module


def _flatten(module: str, change: LowRank) -> Array:
    return np.concatenate([change.a.reshape(-1), _swap(module, change.b).reshape(-1)])


def _unflatten(index: int, row: Array, module: str, rank: int, site: tuple[int, int]) -> LowRank:
    num_out, num_in = site
    size = rank * (num_in + num_out)
    if size > len(row):
        raise BadAdapter(
            f"lora_weights row {index} has {len(row)} values, but {module} requires {size} values "
            f"for the adapter size {rank} in lora_config; send all values"
        )
    if np.any(row[size:]):
        raise BadAdapter(
            f"lora_weights row {index} has nonzero values after its first {size} values, but "
            f"{module} uses only {size} values for the adapter size {rank} in lora_config; "
            "correct the adapter size, or pad the row with zeros"
        )
    values = row[:size].astype(np.float32)
    a = values[: rank * num_in].reshape(rank, num_in)
    return LowRank(a, _swap(module, values[rank * num_in :].reshape(num_out, rank)))


def _swap(module: str, b: Array) -> Array:
    """Convert the rows of `b` from Hugging Face's order to TensorRT-LLM's order, or back.

    The orders differ only for `gate_up_proj`. Return `b` unchanged for any other module.
    """
    if not module.endswith(_SWAPPED):
        return b
    half = len(b) // 2
    return np.concatenate([b[half:], b[:half]])


def _describe(sites: Sites) -> str:
    names = sorted({module.rpartition(".")[2] for module in sites})
    return f"{', '.join(names)} (total: {len(sites)})"
