"""What a model needs of the machines that it is deployed to, whatever schedules them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from trtllm_serve_cli.build.tensorrt.versions import (
    find_containers,
    load_containers,
    parse_version,
)
from trtllm_serve_cli.build.tensorrt_engine import read_tensorrt_build
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.machine import TritonInstallation
from trtllm_serve_cli.launch.options import LaunchOptions
from trtllm_serve_cli.launch.triton import triton_flags
from trtllm_serve_cli.repository import ImportedModel, OpenRepository

RESTRICTING = ("http-restricted-api", "grpc-restricted-protocol")
# What a rank is told that only runs its part of the engine.
OTHER_RANKS = (
    "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false",
    "--model-control-mode=explicit", "--load-model=tensorrt_llm",
)  # fmt: skip
# From here on the engine says how many requests wait in it.
_FIRST_WITH_WAITING = Version("0.18.0")
# Kinds whose ranks are processes that MPI starts, each with a Triton of its own.
_RANKED = ("tensorrt", "pytorch")
_PATHS = ("parameters.tokenizer_dir", "parameters.gpt_model_path", "parameters.engine_dir")


@dataclass(frozen=True, slots=True)
class Deployable:
    """A model as other machines serve it.

    `folders` have to be there, at the same paths. `num_gpus` is of all machines together, and
    `num_ranks` how many processes MPI has to start: 1 for a model without ranks. `image` is the
    container that fits the engine, None where no public one has it. `reports_waiting` tells whether
    the metrics have how many requests wait in the engine.
    """

    name: str
    text_model: str
    kind: str
    models: tuple[str, ...]
    repository: Path
    folders: tuple[Path, ...]
    num_gpus: int
    num_ranks: int
    image: str | None
    reports_waiting: bool = False

    @property
    def is_llm_api(self) -> bool:
        """Whether its ranks are started by TensorRT-LLM's launcher of the LLM API."""
        return self.kind == "pytorch" and self.num_ranks > 1


def describe_deployable(model: ImportedModel, repository: OpenRepository) -> Deployable:
    """What it takes to serve the imported `model` elsewhere, by what its engine says."""
    num_gpus = _count_gpus(model, repository)
    return Deployable(
        name=model.name,
        text_model=model.text_model,
        kind=model.engine_kind,
        models=model.models,
        repository=model.path,
        folders=_list_folders(model, repository),
        num_gpus=num_gpus,
        num_ranks=num_gpus if model.engine_kind in _RANKED else 1,
        image=_find_image(model),
        reports_waiting=_reports_waiting(model),
    )


def triton_words(
    model: Deployable,
    triton: TritonInstallation,
    launch: LaunchOptions,
    *,
    token: str,
    given: Mapping[str, str],
) -> dict[str, str]:
    """Triton's flags by name, each a word as a shell reads it.

    `token`, which opens what is restricted, and the values that are `given` are the shell's to
    expand.
    """
    flags = {
        "model-repository": str(model.repository),
        "model-control-mode": "none",
        "model-load-thread-count": str(max(len(model.models), 4)),
        **triton_flags(triton, launch, Path(), "", has_gpu=model.num_gpus > 0),
    }
    words = {name: f"--{name}={shlex.quote(str(value))}" for name, value in flags.items()}
    for name in RESTRICTING:
        words[name] += token
    words["disable-auto-complete-config"] = "--disable-auto-complete-config"
    return words | {name: f"--{name}={value}" for name, value in given.items()}


def spread(total: int, nodes: int, what: str) -> int:
    """How many of `total` each of `nodes` has. Raises `BadInput` if that is no whole number."""
    if total % nodes:
        raise BadInput(
            f"{total} {what} cannot be shared out among {nodes} nodes.",
            why="each node has to have as many as the others",
            next_step=f"choose --nodes so that it divides {total}",
        )
    return total // nodes


def check_nodes(model: Deployable, nodes: int) -> None:
    """Raises `BadInput` for a model that one node has to serve alone."""
    if nodes > 1 and model.num_ranks == 1:
        raise BadInput(
            f"{model.name} cannot be spread over {nodes} nodes.",
            why=f"its engine, of the kind {model.kind}, runs in one process on one node",
            next_step="leave --nodes out, and deploy it once more for more replicas",
        )


def check_image(model: Deployable, image: str | None) -> str:
    """The image to use: what was asked for, or else what fits. Raises `BadInput` for neither."""
    chosen = image or model.image
    if chosen is None:
        raise BadInput(
            f"No public container image serves {model.name}.",
            why=f"none has Triton and the engine kind {model.kind}",
            next_step="name one of yours that has Triton and `pip install openvino-genai`: "
            "--image IMAGE",
        )
    return chosen


def _count_gpus(model: ImportedModel, repository: OpenRepository) -> int:
    said: Mapping[str, Any]
    match model.engine_kind:
        case "tensorrt":
            return read_tensorrt_build(model.engine_path).world_size
        case "pytorch":
            said = repository.manifest["engine"]["llm_arguments"] or {}
        case "vllm":
            said = repository.manifest["parameters"]
        case _:
            return 0
    return int(said.get("tensor_parallel_size", 1)) * int(said.get("pipeline_parallel_size", 1))


def _reports_waiting(model: ImportedModel) -> bool:
    if model.engine_kind == "tensorrt":
        version = parse_version(read_tensorrt_build(model.engine_path).version)
        return version >= _FIRST_WITH_WAITING
    return "tensorrt_llm" in model.models


def _find_image(model: ImportedModel) -> str | None:
    newest = load_containers()[-1]
    match model.engine_kind:
        case "tensorrt":
            version = parse_version(read_tensorrt_build(model.engine_path).version)
            fitting = find_containers(version)
            return fitting[-1].image if fitting else None
        case "pytorch":
            said = model.declaration.get("engine", {}).get("trtllm_version")
            fitting = find_containers(parse_version(said)) if said else ()
            return (fitting or (newest,))[-1].image
        case "vllm":
            return newest.image.replace("-trtllm-", "-vllm-")
        case _:
            return None


def _list_folders(model: ImportedModel, repository: OpenRepository) -> tuple[Path, ...]:
    """The repository, its engine, and what its models name; none that lies in another."""
    said = (repository.value(name, place) for name in repository.texts for place in _PATHS)
    named = [Path(value) for value in said if value and value.startswith("/")]
    found = dict.fromkeys(
        each for path in (model.path, model.engine_path, *named) for each in _with_targets(path)
    )
    return tuple(path for path in found if not any(other in path.parents for other in found))


def _with_targets(folder: Path) -> list[Path]:
    """The folder, and those that links in it lead to, such as the hub's cache."""
    links = [each for each in folder.rglob("*") if each.is_symlink()] if folder.is_dir() else []
    return [folder, *(link.resolve().parent for link in links)]
