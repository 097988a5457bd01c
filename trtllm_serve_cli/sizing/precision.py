"""Define the number formats: their bits, and the GPUs that support them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.gpus import Gpu

Rate = Literal["fp16", "fp8", "fp4"]


@dataclass(frozen=True, slots=True)
class Format:
    """A number format; `bits` includes scales.

    GPUs multiply at `speed` times their rate `rate`. `capability` is the minimum compute
    capability.
    """

    bits: float
    rate: Rate = "fp16"
    capability: tuple[int, int] = (7, 0)
    speed: float = 1.0


# Formats of the layers' large matrices; embedding, head, norms and routers keep the dtype.
# Scales: one 16-bit number per 128 weights in AWQ and GPTQ, one 8-bit number per 16 in NVFP4 and
# per 32 in MXFP4. SmoothQuant's int8 products count at the 16-bit rate, which is too low; 32-bit
# products count at half of it, like TF32.
WEIGHT_FORMATS = {
    "float32": Format(32, speed=0.5),
    "float16": Format(16),
    "bfloat16": Format(16, capability=(8, 0)),
    "fp8": Format(8, "fp8", (8, 9)),
    "int8": Format(8),
    "int8_sq": Format(8),
    "int4": Format(4),
    "int4_awq": Format(4 + 16 / 128),
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
# Quantization in checkpoints -> our name.
_CHECKPOINT_WORDS = {
    "awq": "int4_awq",
    "gptq": "int4_awq",
    "fbgemm_fp8": "fp8",
    "fp8_pb_wo": "fp8",
    "w4a16_awq": "int4_awq",
}


def read_quantization_word(config: Mapping[str, Any]) -> str:
    """Return the name in a `quantization_config` in lower case, or "unknown".

    GPTQ and AWQ have 4 bits by default.
    """
    word = str(config.get("quant_algo") or config.get("quant_method") or "unknown").lower()
    is_usual = word not in ("gptq", "awq") or config.get("bits") in (None, 4)
    return word if is_usual else f"{word}_{config['bits']}_bits"


def name_weight_format(checkpoint_word: str) -> str | None:
    """Translate a quantization in config.json to our name, or None if it is not supported."""
    word = _CHECKPOINT_WORDS.get(checkpoint_word, checkpoint_word)
    return word if word in WEIGHT_FORMATS else None


def check_runs(what: str, number_format: Format, gpu: Gpu, next_step: str) -> None:
    """Raise `BadInput` if the GPU does not support the format, which errors call `what`."""
    if gpu.capability < number_format.capability:
        needed, has = (
            ".".join(map(str, each)) for each in (number_format.capability, gpu.capability)
        )
        raise BadInput(
            f"{gpu.name} cannot run {what}.",
            why=f"it requires compute capability {needed}, but {gpu.name} has {has}",
            next_step=next_step,
        )
