"""The tokenizer of the model that is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtllm_serve_cli.bench.model.served_model import CORE_MODEL, Target
from trtllm_serve_cli.bench.workloads.dataset import Tokenizer
from trtllm_serve_cli.client.transport.over_grpc import fetch_config_grpc
from trtllm_serve_cli.client.transport.over_http import fetch_config_http
from trtllm_serve_cli.errors import BadInput, MissingPart, RequestFailed
from trtllm_serve_cli.runtime.text.tokenizer import load_tokenizer

_TIMEOUT_S = 10.0


def find_tokenizer_folder(targets: Iterable[Target]) -> Path:
    """The one folder here that every target's `preprocessing` names.

    Raises `BadInput`, also where they name several, or `NoServer`.
    """
    folders = {_fetch_folder(target): target for target in targets}
    if len(folders) > 1:
        raise BadInput(
            "Several models may have several tokenizers.",
            why="; ".join(
                f"{target.model} at {target.address} has {folder}"
                for folder, target in folders.items()
            ),
            next_step="name one that suits them all: --tokenizer DIR",
        )
    return next(iter(folders))


def _fetch_folder(target: Target) -> Path:
    preprocessing = target.model.removesuffix(CORE_MODEL) + "preprocessing"
    fetch = fetch_config_grpc if target.interface == "grpc" else fetch_config_http
    try:
        parameters, _ = fetch(target.address, preprocessing, _TIMEOUT_S)
    except RequestFailed as error:
        raise _unknown(
            f"{target.address} has no model {preprocessing} that would name it"
        ) from error
    folder = parameters.get("tokenizer_dir", "")
    if not folder or not Path(folder).is_dir():
        raise _unknown(f"{preprocessing} names {folder or 'none'}, which is no folder here")
    return Path(folder)


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`. Raises `BadInput` or `MissingPart`."""
    if not folder.is_dir():
        raise BadInput(f"There is no folder {folder}.", next_step="check --tokenizer")
    try:
        return load_tokenizer(folder)
    except ImportError as error:
        raise MissingPart(
            f"The tokenizer in {folder} needs the package {error.name}.",
            why="its files are those of Hugging Face or of OpenVINO",
            next_step=f"pip install {(error.name or '').replace('_', '-')}",
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"{folder} has no tokenizer that can be read.",
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            next_step="name the folder with tokenizer.json: --tokenizer DIR",
        ) from error


def _unknown(why: str) -> BadInput:
    return BadInput(
        "The model's tokenizer is not known.", why=why, next_step="name its folder: --tokenizer DIR"
    )
