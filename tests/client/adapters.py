"""A small LoRA adapter, as `hf_lora_convert.py` would have written it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trtllm_serve_cli.client.lora import CONFIG_FILE, WEIGHTS_FILE


def write(folder: Path, dtype: str = "float16", num_rows: int = 2) -> None:
    np.save(folder / WEIGHTS_FILE, np.arange(1, 9, dtype=dtype).reshape(1, 2, 4))
    np.save(folder / CONFIG_FILE, np.ones((1, num_rows, 3), dtype=np.int32))
