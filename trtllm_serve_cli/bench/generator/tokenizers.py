"""Find and load the tokenizer of the model to benchmark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtllm_serve_cli.bench.model.served_model import CORE_MODEL, Target
from trtllm_serve_cli.bench.workloads.dataset import Tokenizer
from trtllm_serve_cli.client.model_info import fetch_model_config
from trtllm_serve_cli.errors import BadInput, MissingPart, RequestFailed
from trtllm_serve_cli.runtime.text.tokenizer import BadTokenizer, load_tokenizer

_PASS_TOKENIZER = "pass --tokenizer DIR, where DIR is a folder that contains the model's tokenizer"


def find_tokenizer_folder(targets: Iterable[Target]) -> Path:
    """Return the tokenizer folder configured in the targets' `preprocessing` models.

    Raise `BadInput` if a model's configuration cannot be fetched or does not set `tokenizer_dir` to
    a local folder, or if the folders differ. Raise `NoServer` if a server cannot be reached.
    """
    folders = {_fetch_folder(target): target for target in targets}
    if len(folders) > 1:
        raise BadInput(
            "The models use different tokenizer folders.",
            why="; ".join(
                f"{target.model} at {target.address} uses {folder}"
                for folder, target in folders.items()
            ),
            next_step="benchmark each model separately, or pass --tokenizer DIR with a tokenizer "
            "that works for all models",
        )
    return next(iter(folders))


def _fetch_folder(target: Target) -> Path:
    preprocessing = target.model.removesuffix(CORE_MODEL) + "preprocessing"
    try:
        config = fetch_model_config(target.endpoint, preprocessing, target.interface)
    except RequestFailed as error:
        raise _unknown(
            f"the configuration of {preprocessing} at {target.address} could not be fetched: "
            f"{error.why}"
        ) from error
    folder = config.tokenizer_dir
    if not folder:
        raise _unknown(f"the configuration of {preprocessing} does not set tokenizer_dir")
    if not Path(folder).is_dir():
        raise _unknown(
            f"{preprocessing} sets tokenizer_dir to {folder!r}, which is not a local folder"
        )
    return Path(folder)


def open_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer in `folder`.

    Raise `BadInput` if `folder` does not contain a readable tokenizer, or `MissingPart` if a
    package that the tokenizer requires is not installed.
    """
    if not folder.is_dir():
        raise BadInput(
            f"The tokenizer in {folder} cannot be loaded.",
            why="the path is not a folder" if folder.exists() else "the folder does not exist",
            next_step=_PASS_TOKENIZER,
        )
    try:
        return load_tokenizer(folder)
    except ImportError as error:
        raise MissingPart(
            f"The tokenizer in {folder} cannot be loaded.",
            why=f"the {error.name} package is not installed",
            next_step=f"run `pip install {(error.name or '').replace('_', '-')}`",
        ) from error
    except BadTokenizer as error:
        raise BadInput(
            f"The tokenizer in {folder} cannot be loaded.",
            why=str(error),
            next_step=_PASS_TOKENIZER,
        ) from error


def _unknown(why: str) -> BadInput:
    return BadInput(
        "The model's tokenizer is unknown.",
        why=why,
        next_step=_PASS_TOKENIZER,
    )
