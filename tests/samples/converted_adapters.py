"""A small LoRA adapter, as `hf_lora_convert.py` would have written it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trtllm_serve_cli.runtime.lora.peft import LORA_CONFIG, LORA_WEIGHTS


def write(folder: Path, dtype: str = "float16", num_rows: int = 2) -> None:
    np.save(folder / LORA_WEIGHTS, np.arange(1, 9, dtype=dtype).reshape(1, 2, 4))
    np.save(folder / LORA_CONFIG, np.ones((1, num_rows, 3), dtype=np.int32))
