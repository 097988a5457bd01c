"""Load LoRA adapters in the format of upstream's `hf_lora_convert.py`: two .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_serve_cli.client.generate import RawTensor
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.lora.peft import LORA_CONFIG, LORA_WEIGHTS


def load_adapter(folder: Path) -> tuple[RawTensor, RawTensor]:
    """Return the tensors `lora_weights` and `lora_config`. Raise `BadInput` if they are invalid."""
    weights = _load(folder / LORA_WEIGHTS, "f", "<f2")
    config = _load(folder / LORA_CONFIG, "iu", "<i4")
    if config.shape[1] != weights.shape[1]:
        raise BadInput(
            f"The files of the adapter in {folder} do not match.",
            why=f"{LORA_WEIGHTS} has {weights.shape[1]} rows, {LORA_CONFIG} {config.shape[1]}",
            next_step="convert the adapter again: `tllm lora convert`",
        )
    return _as_tensor(weights), _as_tensor(config)


def _load(file: Path, kinds: str, dtype: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(file, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise BadInput(
            f"{file} cannot be read.",
            why=getattr(error, "strerror", None) or str(error),
            next_step=f"name a folder with {LORA_WEIGHTS} and {LORA_CONFIG}, "
            "which `tllm lora convert` creates",
        ) from error
    if array.dtype.kind not in kinds or array.ndim not in (2, 3) or len(array) == 0:
        raise _invalid_adapter(file, f"it is {array.dtype} of shape {list(array.shape)}")
    batched = array if array.ndim == 3 else array[None]
    if len(batched) != 1:
        raise _invalid_adapter(
            file, f"it has a batch of {len(batched)}, but a request has one adapter"
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
