"""Define the size, speed and hardware requirements of number formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.gpus import Gpu

Rate = Literal["fp16", "fp8", "fp4"]


@dataclass(frozen=True, slots=True)
class Format:
    """A number format.

    - `bits`: the average number of bits per value, including scales.
    - `rate`: the `Gpu` field that contains the base compute rate.
    - `capability`: the minimum compute capability.
    - `speed`: the format's compute rate, as a multiple of the base rate.
    """

    bits: float
    rate: Rate = "fp16"
    capability: tuple[int, int] = (7, 0)
    speed: float = 1.0


# Formats for the large matrices in layers. The embedding, head, norms and routers are not
# quantized. AWQ and GPTQ have a 16-bit scale for every 128 weights. NVFP4 has an 8-bit scale for
# every 16 weights, and MXFP4 has an 8-bit scale for every 32 weights. SmoothQuant (int8_sq) is
# estimated at the 16-bit rate, although GPUs multiply faster in int8. float32 is estimated at
# TF32's rate, which is half the 16-bit rate.
WEIGHT_FORMATS = {
    "float32": Format(32, speed=0.5),
    "float16": Format(16),
    "bfloat16": Format(16, capability=(8, 0)),
    "fp8": Format(8, "fp8", (8, 9)),
    "fp8_rowwise": Format(8, "fp8", (8, 9)),
    "int8": Format(8),
    "int8_sq": Format(8),
    "int4": Format(4),
    "int4_awq": Format(4 + 16 / 128),
    "int4_gptq": Format(4 + 16 / 128),
    "w4a8_awq": Format(4 + 16 / 128, "fp8", (8, 9)),
    "nvfp4": Format(4 + 8 / 16, "fp4", (10, 0)),
    "mxfp4": Format(4 + 8 / 32, capability=(9, 0)),
}
KV_FORMATS = {
    "float32": Format(32),
    "float16": Format(16),
    "bfloat16": Format(16, capability=(8, 0)),
    "fp8": Format(8, "fp8", (8, 9)),
    "int8": Format(8),
    "nvfp4": Format(4 + 8 / 16, "fp4", (10, 0)),
}
# Maps quantization names in checkpoints to names in `WEIGHT_FORMATS`.
_CHECKPOINT_WORDS = {
    "awq": "int4_awq",
    "gptq": "int4_gptq",
    "fbgemm_fp8": "fp8",
    "fp8_pb_wo": "fp8",
    "w4a16_awq": "int4_awq",
}
# Maps the type and number of bits of compressed-tensors weights to names in `WEIGHT_FORMATS`.
# Source: `QuantizationArgs` in src/compressed_tensors/quantization/quant_args.py of
# vllm-project/compressed-tensors.
_COMPRESSED = {"float8": "fp8", "int8": "int8", "int4": "int4"}


def read_quantization_word(config: Mapping[str, Any]) -> str:
    """Return the lower-case quantization name in a `quantization_config`.

    Return "unknown" if the name is missing. For GPTQ and AWQ, the name includes the number of bits
    unless the number is 4 or missing. For compressed-tensors, return the format of the weights if
    all of them have the same known format.
    """
    word = str(config.get("quant_algo") or config.get("quant_method") or "unknown").lower()
    if word == "compressed-tensors":
        return _find_compressed_format(config.get("config_groups")) or word
    is_usual = word not in ("gptq", "awq") or config.get("bits") in (None, 4)
    return word if is_usual else f"{word}_{config['bits']}_bits"


def _find_compressed_format(groups: Any) -> str | None:
    """Return the weight format of all compressed-tensors groups, or None if it is not known."""
    described = groups.values() if isinstance(groups, Mapping) else ()
    weights = [group.get("weights") for group in described if isinstance(group, Mapping)]
    found = {
        _COMPRESSED.get(f"{each.get('type')}{each.get('num_bits')}")
        for each in weights
        if isinstance(each, Mapping)
    }
    return found.pop() if len(found) == 1 else None


def name_weight_format(checkpoint_word: str) -> str | None:
    """Return the key in `WEIGHT_FORMATS` for a checkpoint's quantization.

    Return None if `WEIGHT_FORMATS` does not contain the quantization.
    """
    word = _CHECKPOINT_WORDS.get(checkpoint_word, checkpoint_word)
    return word if word in WEIGHT_FORMATS else None


def check_runs(what: str, number_format: Format, gpu: Gpu, next_step: str) -> None:
    """Raise `BadInput` if the GPU does not support the format.

    `what` describes the format in the error message.
    """
    if gpu.capability < number_format.capability:
        needed, has = (
            ".".join(map(str, each)) for each in (number_format.capability, gpu.capability)
        )
        raise BadInput(
            f"The {gpu.name} GPU does not support {what}.",
            why=f"the format requires compute capability {needed}, but the GPU has {has}",
            next_step=next_step,
        )
