"""Plan the LoRA adapters that the gateway serves as models."""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from pathlib import Path

from trtllm_serve_cli.containers.container import with_link_targets
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.config import ADAPTER_NAME, GatewayConfig, ServedAdapter
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.runtime.lora.file_names import LORA_CONFIG, PEFT_CONFIG

_EXAMPLE = "pass a name and a folder, for example --lora poet=/srv/adapters/poet"


def plan_adapters(words: Sequence[str], models: Sequence[str]) -> tuple[ServedAdapter, ...]:
    """Parse the values of `--lora`, which have the format NAME=FOLDER or MODEL:NAME=FOLDER.

    `models` are the names of the served models. Raise `BadInput` if a value is not valid, if it
    lacks MODEL although the server has several models, if a name is already in use, or if a folder
    does not contain an adapter.
    """
    names = list(dict.fromkeys(models))
    adapters: list[ServedAdapter] = []
    for word in words:
        adapter = _parse(word, names)
        if adapter.name in (*names, *(each.name for each in adapters)):
            raise BadInput(
                f"--lora {word} uses the name {adapter.name!r}, which is already in use.",
                why="clients select adapters and models by name",
                next_step="choose another name for the adapter",
            )
        adapters.append(adapter)
    return tuple(adapters)


def _parse(word: str, models: Sequence[str]) -> ServedAdapter:
    named, _, folder = word.partition("=")
    model, colon, name = named.partition(":")
    if not colon or model not in models:
        model, name = "", named
    if not folder or not re.match(ADAPTER_NAME, name):
        raise BadInput(
            f"The --lora value {word} is not valid.",
            why="the value must have the format NAME=FOLDER, and NAME can contain at most 128 "
            "letters, digits and the characters _.:/@+-",
            next_step=_EXAMPLE,
        )
    if not model and len(models) != 1:
        raise BadInput(
            f"--lora {word} does not specify the base model.",
            why=f"the server has several models: {', '.join(models)}",
            next_step=f"add the name of the base model, for example --lora {models[0]}:{word}",
        )
    path = _normalize(Path(folder))
    if not any((path / each).is_file() for each in (PEFT_CONFIG, LORA_CONFIG)):
        raise BadInput(
            f"{folder} does not contain a LoRA adapter.",
            why=f"the folder contains neither {PEFT_CONFIG} nor {LORA_CONFIG}",
            next_step="pass the folder that PEFT's save_pretrained or `tllm lora convert` wrote",
        )
    return ServedAdapter(name, str(path), model or models[0])


def check_runtime_folder(options: LaunchOptions) -> str | None:
    """Return the absolute path of `runtime_lora_dir`, or None if clients cannot load adapters.

    Raise `BadInput` if `runtime_lora_dir` is not a folder, or if the API runs in several processes.
    """
    if options.runtime_lora_dir is None:
        return None
    folder = _normalize(options.runtime_lora_dir)
    if not folder.is_dir():
        raise BadInput(
            f"{folder} is not a folder.",
            next_step="set --runtime-lora-dir to a folder that contains a subfolder for each "
            "adapter",
        )
    if (options.openai_processes or 1) > 1:
        raise BadInput(
            "--runtime-lora-dir requires the OpenAI-compatible API to run in a single process.",
            why="each process would serve only the adapters that clients have loaded into that "
            "process",
            next_step="omit --openai-processes, or set it to 1",
        )
    return str(folder)


def list_adapter_folders(config: GatewayConfig | None) -> tuple[Path, ...]:
    """Return the folders of adapters that an engine of the gateway may read.

    Return an empty tuple if `config` is None. The result includes the folders that contain the
    targets of symbolic links in the folders of `--lora`. It does not include such folders for
    `runtime_lora_dir`, because clients may be able to create links there.
    """
    if config is None:
        return ()
    adapters = (each for one in config.adapters for each in with_link_targets(Path(one.folder)))
    runtime = (config.runtime_lora_dir,) if config.runtime_lora_dir else ()
    return tuple(dict.fromkeys((*adapters, *map(Path, runtime))))


def _normalize(folder: Path) -> Path:
    """Return the absolute path without `..`, which Kubernetes does not allow in mounts."""
    return Path(os.path.normpath(folder.absolute()))
