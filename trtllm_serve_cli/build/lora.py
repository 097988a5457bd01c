"""Convert a PEFT adapter to the weight and config files that NVIDIA's clients send.

The file layout matches the output of examples/hf_lora_convert.py in NVIDIA/TensorRT-LLM. The
`runtime.lora` package implements this layout, because the server also reads the files.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import write_aside
from trtllm_serve_cli.runtime.lora.adapter import Adapter, BadAdapter, encode_adapter
from trtllm_serve_cli.runtime.lora.file_names import LORA_CONFIG, LORA_WEIGHTS, PEFT_CONFIG
from trtllm_serve_cli.runtime.lora.peft import read_peft

LoraDtype = Literal["float16", "bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class LoraFiles:
    """The contents of a converted adapter's two files.

    `source` is the original adapter's folder. `destination` is the folder for the two files.
    `modules` maps each module name to the number of layers with adapter weights for the module.
    """

    source: Path
    destination: Path
    dtype: LoraDtype
    weights: np.ndarray[Any, np.dtype[Any]]
    config: np.ndarray[Any, np.dtype[Any]]
    modules: dict[str, int]

    @property
    def ranks(self) -> list[int]:
        """The distinct adapter sizes (ranks), in ascending order."""
        return sorted({int(rank) for rank in self.config[..., 2].reshape(-1)})

    def as_dict(self) -> dict[str, Any]:
        """Return a description of the files for `--json`."""
        return {
            "source": str(self.source),
            "destination": str(self.destination),
            "dtype": self.dtype,
            "modules": self.modules,
            "adapter_sizes": self.ranks,
            LORA_WEIGHTS: list(self.weights.shape),
            LORA_CONFIG: list(self.config.shape),
        }


def convert_lora(source: Path, destination: Path, dtype: LoraDtype) -> LoraFiles:
    """Convert the PEFT adapter in `source` without writing files.

    Raise `BadInput` if `source` does not contain a complete and valid PEFT adapter, or if the file
    layout cannot represent the adapter.
    """
    if not (source / PEFT_CONFIG).is_file():
        raise BadInput(
            f"{source} does not contain a PEFT adapter.",
            why=f"{PEFT_CONFIG} is missing",
            next_step="pass the output folder of PEFT's save_pretrained",
        )
    try:
        adapter = read_peft(source)
        weights, config = encode_adapter(adapter, dtype)
    except FileNotFoundError as error:
        raise BadInput(
            f"The PEFT adapter in {source} is incomplete.",
            why=f"{error.filename} is missing",
            next_step="save the adapter again in the safetensors format",
        ) from error
    except BadAdapter as error:
        raise BadInput(
            f"The adapter in {source} cannot be converted.",
            why=str(error),
            next_step="pass a standard LoRA adapter for attention and MLP layers",
        ) from error
    # Like hf_lora_convert.py, add a batch dimension to the arrays.
    return LoraFiles(source, destination, dtype, weights[None], config[None], _count(adapter))


def write_lora(files: LoraFiles, *, force: bool) -> None:
    """Write both files. If an error occurs, the destination folder remains unchanged.

    Raise `BadInput` if the destination is not a folder or contains other files, or if it contains
    an adapter and `force` is not set.
    """
    _check_replaceable(files.destination, force=force)
    with write_aside(files.destination) as aside:
        np.save(aside / LORA_WEIGHTS, files.weights)
        np.save(aside / LORA_CONFIG, files.config)


def _check_replaceable(folder: Path, *, force: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise BadInput(
            f"{folder} is not a folder.",
            why="the converted adapter is a folder with two files",
            next_step=f"pass a new folder, for example {shlex.quote(f'{folder}-lora')}",
        )
    if {each.name for each in folder.iterdir()} - {LORA_WEIGHTS, LORA_CONFIG}:
        raise BadInput(
            f"{folder} contains files that are not part of an adapter.",
            why="the converted adapter would replace all files in the folder",
            next_step=f"pass a new folder, for example {shlex.quote(str(folder / 'lora'))}",
        )
    if any(folder.iterdir()) and not force:
        raise BadInput(
            f"{folder} already contains an adapter.",
            why="the conversion would overwrite the existing files",
            next_step="add --force to replace the adapter",
        )


def _count(adapter: Adapter) -> dict[str, int]:
    return dict(Counter(sorted(module.rpartition(".")[2] for module in adapter)))
