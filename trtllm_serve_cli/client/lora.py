"""LoRA adapters as upstream's `hf_lora_convert.py` writes them: two .npy files in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_serve_cli.client.generate import RawTensor
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.lora.peft import LORA_CONFIG, LORA_WEIGHTS


def load_adapter(folder: Path) -> tuple[RawTensor, RawTensor]:
    """The tensors `lora_weights` and `lora_config`; raises `BadInput` when they cannot be had."""
    weights = _load(folder / LORA_WEIGHTS, "f", "<f2")
    config = _load(folder / LORA_CONFIG, "iu", "<i4")
    if config.shape[1] != weights.shape[1]:
        raise BadInput(
            f"The adapter in {folder} does not fit together.",
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
            "as `tllm lora convert` makes it",
        ) from error
    if array.dtype.kind not in kinds or array.ndim not in (2, 3) or len(array) == 0:
        raise _invalid_adapter(file, f"it is {array.dtype} of shape {list(array.shape)}")
    batched = array if array.ndim == 3 else array[None]
    if len(batched) != 1:
        raise _invalid_adapter(
            file, f"it is for a batch of {len(batched)}, and a request has one adapter"
        )
    return batched.astype(dtype)


def _invalid_adapter(file: Path, why: str) -> BadInput:
    return BadInput(
        f"{file} is no part of a LoRA adapter.",
        why=why,
        next_step="convert the adapter with `tllm lora convert`",
    )


def _as_tensor(array: NDArray[Any]) -> RawTensor:
    return RawTensor(array.shape, array.tobytes())
