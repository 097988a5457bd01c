"""`tllm lora`: convert LoRA adapters to the tensors that NVIDIA's clients send."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from trtllm_serve_cli.cli.command_groups import FullSummaryGroup
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.options import DryRunOption, ForceOption, JsonOption

lora_app = typer.Typer(cls=FullSummaryGroup, help="Convert LoRA adapters.", no_args_is_help=True)


class Dtype(str, Enum):
    """The data types that `--dtype` accepts."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"


@lora_app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="PEFT adapter in safetensors format: a folder, or hf:ORG/NAME for a repository "
            "on the Hugging Face Hub.",
        ),
    ],
    destination: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="Output folder for model.lora_weights.npy and model.lora_config.npy.",
        ),
    ],
    dtype: Annotated[
        Dtype,
        typer.Option(
            "--dtype",
            help=(
                "Data type of the weights in model.lora_weights.npy. To send the arrays in "
                "requests, choose the data type of the model's lora_weights input."
            ),
        ),
    ] = Dtype.float16,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a PEFT adapter to model.lora_weights.npy and model.lora_config.npy.

    To use the adapter in a request, send the arrays in the two files as the tensors lora_weights
    and lora_config, with a lora_task_id of your choice. To load the adapter when the server starts,
    name the folder after the task id and move the folder into the model's lora_prefetch_dir.

    Example:  tllm lora convert ./my-adapter ./lora/1
    """
    from trtllm_serve_cli.build.lora import convert_lora, write_lora

    files = convert_lora(_find_adapter(source), destination, dtype.value)
    if not dry_run:
        write_lora(files, force=force)
    if as_json:
        output.show_json(files.as_dict())
        return
    modules = ", ".join(f"{name} in {layers} layers" for name, layers in files.modules.items())
    sizes = ", ".join(map(str, files.ranks))
    output.notify(
        f"{'Would write' if dry_run else 'Wrote'} {destination}: {modules}; rank {sizes}; "
        f"{files.weights.nbytes / 1e6:.1f} MB of {dtype.value} weights."
    )


def _find_adapter(source: str) -> Path:
    """Return the adapter folder.

    If `source` is a repository on the Hugging Face Hub, download the adapter first.
    """
    if not source.startswith("hf:"):
        return Path(source)
    from trtllm_serve_cli.runtime.lora.file_names import PEFT_CONFIG, PEFT_WEIGHTS
    from trtllm_serve_cli.sources.fetch import fetch_adapter
    from trtllm_serve_cli.sources.registry import parse_source
    from trtllm_serve_cli.sources.source import CheckpointSource

    parsed = parse_source(source)
    assert isinstance(parsed, CheckpointSource)
    return fetch_adapter(parsed, (PEFT_CONFIG, PEFT_WEIGHTS))
