"""Load LoRA adapters as the request tensors `lora_weights` and `lora_config`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_serve_cli.build.lora import LoraDtype, convert_lora
from trtllm_serve_cli.client.generate import RawTensor
from trtllm_serve_cli.client.model_info import LoraDatatype
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.lora.adapter import (
    BFLOAT16,
    BadAdapter,
    narrow_weights,
    widen_weights,
)
from trtllm_serve_cli.runtime.lora.file_names import LORA_CONFIG, LORA_WEIGHTS, PEFT_CONFIG
from trtllm_serve_cli.runtime.lora.peft import read_npy

_DTYPES: Mapping[LoraDatatype, LoraDtype] = {
    "FP16": "float16", "BF16": "bfloat16", "FP32": "float32",
}  # fmt: skip

# Maps NumPy's `dtype.kind` codes to descriptions for error messages.
_NUMBERS = {"f": "floating-point numbers", "iu": "integers"}


def load_adapter(folder: Path, datatype: LoraDatatype = "FP16") -> tuple[RawTensor, RawTensor]:
    """Return the `lora_weights` and `lora_config` tensors of the adapter in `folder`.

    The folder contains a PEFT adapter, or the two .npy files that TensorRT-LLM's
    `hf_lora_convert.py` and `tllm lora convert` write. `datatype` is the type of `lora_weights`.
    Raise `BadInput` if a file cannot be read, if the adapter is invalid or cannot be converted, or
    if the tensors have different numbers of rows.
    """
    dtype = _DTYPES[datatype]
    if (folder / PEFT_CONFIG).is_file() and not (folder / LORA_CONFIG).exists():
        files = convert_lora(folder, folder, dtype)
        return _as_tensor(files.weights), _as_tensor(files.config)
    weights = _load(folder / LORA_WEIGHTS, "f")
    config = _load(folder / LORA_CONFIG, "iu")
    if config.shape[1] != weights.shape[1]:
        raise BadInput(
            f"The adapter weights and the adapter configuration in {folder} do not match.",
            why=f"{LORA_WEIGHTS} has {weights.shape[1]} rows, but {LORA_CONFIG} has "
            f"{config.shape[1]}",
            next_step="convert the adapter again with `tllm lora convert`, which writes both files",
        )
    try:
        weights = narrow_weights(widen_weights(weights), dtype)
    except BadAdapter as error:
        raise _invalid_adapter(folder / LORA_WEIGHTS, str(error)) from error
    return _as_tensor(weights), _as_tensor(config.astype("<i4"))


def convert_weights(weights: RawTensor, datatype: LoraDatatype) -> RawTensor:
    """Convert FP16 `lora_weights` to another data type."""
    array = np.frombuffer(weights.content, "<f2").reshape(weights.shape)
    return _as_tensor(narrow_weights(array, _DTYPES[datatype]))


def _load(file: Path, kinds: str) -> NDArray[Any]:
    """Return the array in `file`, with a batch dimension of 1."""
    try:
        array = read_npy(file)
    except (OSError, BadAdapter) as error:
        raise BadInput(
            f"{file} cannot be read.",
            why=getattr(error, "strerror", None) or str(error),
            next_step="pass the folder of a PEFT adapter, or the output folder of "
            f"`tllm lora convert`, which contains {LORA_WEIGHTS} and {LORA_CONFIG}",
        ) from error
    has_type = array.dtype.kind in kinds or (array.dtype == BFLOAT16 and "f" in kinds)
    if not has_type or array.ndim not in (2, 3) or len(array) == 0:
        raise _invalid_adapter(
            file,
            f"the array must contain {_NUMBERS[kinds]} in 2 or 3 dimensions, but its type is "
            f"{array.dtype} and its shape is {list(array.shape)}",
        )
    batched = array if array.ndim == 3 else array[None]
    if len(batched) != 1:
        raise _invalid_adapter(
            file, f"the file contains {len(batched)} adapters, but a request can use only one"
        )
    return batched


def _invalid_adapter(file: Path, why: str) -> BadInput:
    return BadInput(
        f"{file} is not a valid LoRA adapter file.",
        why=why,
        next_step="convert the adapter with `tllm lora convert`",
    )


def _as_tensor(array: NDArray[Any]) -> RawTensor:
    return RawTensor(array.shape, array.tobytes())
