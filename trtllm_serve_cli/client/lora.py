"""Load LoRA adapters from the two .npy files that TensorRT-LLM's `hf_lora_convert.py` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_serve_cli.client.generate import RawTensor
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.lora.peft import LORA_CONFIG, LORA_WEIGHTS

# Maps NumPy's codes for kinds of data types to the names of the numbers in error messages.
_NUMBERS = {"f": "floating-point numbers", "iu": "integers"}


def load_adapter(folder: Path) -> tuple[RawTensor, RawTensor]:
    """Return the `lora_weights` and `lora_config` tensors of the adapter in `folder`.

    Raise `BadInput` if a file cannot be read, if a tensor is invalid, or if the tensors have
    different numbers of rows.
    """
    weights = _load(folder / LORA_WEIGHTS, "f", "<f2")
    config = _load(folder / LORA_CONFIG, "iu", "<i4")
    if config.shape[1] != weights.shape[1]:
        raise BadInput(
            f"The weights and the configuration of the adapter in {folder} do not match.",
            why=f"{LORA_WEIGHTS} has {weights.shape[1]} rows, but {LORA_CONFIG} has "
            f"{config.shape[1]}",
            next_step="convert the adapter again with `tllm lora convert`, which writes both files",
        )
    return _as_tensor(weights), _as_tensor(config)


def _load(file: Path, kinds: str, dtype: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(file, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise BadInput(
            f"{file} cannot be read.",
            why=getattr(error, "strerror", None) or str(error),
            next_step=f"pass a folder that contains {LORA_WEIGHTS} and {LORA_CONFIG}, such as the "
            "output of `tllm lora convert`",
        ) from error
    if array.dtype.kind not in kinds or array.ndim not in (2, 3) or len(array) == 0:
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
    return batched.astype(dtype)


def _invalid_adapter(file: Path, why: str) -> BadInput:
    return BadInput(
        f"{file} is not a valid LoRA adapter file.",
        why=why,
        next_step="convert the adapter with `tllm lora convert`",
    )


def _as_tensor(array: NDArray[Any]) -> RawTensor:
    return RawTensor(array.shape, array.tobytes())
