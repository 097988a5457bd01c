"""Find and load the tokenizer for the model to benchmark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtllm_serve_cli.bench.model.served_model import CORE_MODEL, Target
from trtllm_serve_cli.bench.workloads.dataset import Tokenizer
from trtllm_serve_cli.client.server import fetch_model_config
from trtllm_serve_cli.errors import BadInput, MissingPart, RequestFailed
from trtllm_serve_cli.runtime.text.tokenizer import load_tokenizer


def find_tokenizer_folder(targets: Iterable[Target]) -> Path:
    """Return the tokenizer folder in the configuration of each target's `preprocessing` model.

    Raise `BadInput` if a target specifies no local folder or the targets specify different folders,
    or `NoServer`.
    """
    folders = {_fetch_folder(target): target for target in targets}
    if len(folders) > 1:
        raise BadInput(
            "The models have different tokenizers.",
            why="; ".join(
                f"{target.model} at {target.address} has {folder}"
                for folder, target in folders.items()
            ),
            next_step="specify one that fits all of them: --tokenizer DIR",
        )
    return next(iter(folders))


def _fetch_folder(target: Target) -> Path:
    preprocessing = target.model.removesuffix(CORE_MODEL) + "preprocessing"
    try:
        config = fetch_model_config(target.endpoint, preprocessing, target.interface)
    except RequestFailed as error:
        raise _unknown(
            f"{target.address} does not serve {preprocessing}, which specifies the tokenizer"
        ) from error
    folder = config.tokenizer_dir
    if not folder or not Path(folder).is_dir():
        raise _unknown(f"the tokenizer_dir of {preprocessing}, {folder!r}, is not a local folder")
    return Path(folder)


def open_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer in `folder`. Raise `BadInput`, or `MissingPart` if it needs a package."""
    if not folder.is_dir():
        raise BadInput(f"The folder {folder} does not exist.", next_step="check --tokenizer")
    try:
        return load_tokenizer(folder)
    except ImportError as error:
        raise MissingPart(
            f"The tokenizer in {folder} requires the package {error.name}.",
            why="the tokenizer is in Hugging Face or OpenVINO format",
            next_step=f"pip install {(error.name or '').replace('_', '-')}",
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"{folder} does not contain a readable tokenizer.",
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            next_step="specify the folder with tokenizer.json: --tokenizer DIR",
        ) from error


def _unknown(why: str) -> BadInput:
    return BadInput(
        "The model's tokenizer is unknown.",
        why=why,
        next_step="specify its folder: --tokenizer DIR",
    )
