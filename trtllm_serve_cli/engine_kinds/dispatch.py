"""Plan builds and load engines with the engine kind's functions."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from packaging.version import Version

from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.container import ContainerOptions, find_container_tools
from trtllm_serve_cli.build.engine import Engine, read_engine
from trtllm_serve_cli.build.installed import find_versions
from trtllm_serve_cli.build.tensorrt.images import BuildImage, choose_image
from trtllm_serve_cli.build.tensorrt.versions import find_trtllm_version, parse_version
from trtllm_serve_cli.engine_kinds.kind import EngineKind
from trtllm_serve_cli.engine_kinds.registry import EMBEDDED, all_kinds, find_kind
from trtllm_serve_cli.errors import BadInput, BuildFailed, explain_invalid_file
from trtllm_serve_cli.sizing.gpus import PresentGpu, find_card, find_gpus

_FORMAT_NAMES = {"gguf": "a GGUF file", "hf": "a Hugging Face checkpoint"}


def plan_build(request: BuildRequest, tools: Toolchain) -> BuildPlan:
    """Return the build plan for the requested engine.

    Raise `BadInput` if the engine kind does not support the request, `SourceError` if a file of the
    checkpoint is not valid, or `MissingPart` if a package that the server requires is not
    installed.
    """
    kind = find_kind(request.kind)
    _check_format(kind, request)
    return kind.building.plan(request, tools)


def describe_checkpoint(request: BuildRequest, tools: Toolchain) -> Engine:
    """Return an `Engine` for a checkpoint that the engine kind serves directly.

    Raise `BadInput` if the engine kind does not support the checkpoint or an option.
    """
    kind = find_kind(request.kind)
    _check_format(kind, request)
    assert kind.building.describe is not None
    return kind.building.describe(request, tools)


def complete_engine(engine: Engine) -> Engine:
    """Return a copy of the engine with its kind-specific `details`.

    Raise `BuildFailed` if an engine file is not valid.
    """
    return dataclasses.replace(engine, details=read_details(engine.kind, engine.path))


def load_engine(path: Path) -> Engine:
    """Return the engine in the folder `path`, including its kind-specific `details`.

    Raise `BuildFailed` if the engine cannot be read.
    """
    return complete_engine(read_engine(path))


def read_details(kind: str, path: Path) -> Any:
    """Return the kind-specific details of the engine in `path`, or None if the kind has no details.

    Raise `BuildFailed` if an engine file is not valid.
    """
    read = find_kind(kind).building.read_details
    again = "build the engine again with --force"
    try:
        return read(path) if read is not None else None
    except BadInput as error:
        raise BuildFailed(error.what, why=error.why, next_step=again) from error
    except (OSError, ValueError) as error:
        raise BuildFailed(
            f"{path} does not contain a valid engine.",
            why=explain_invalid_file("a file in the folder", error),
            next_step=again,
        ) from error


def find_tools(
    trtllm_version: str | None = None, container: ContainerOptions | None = None
) -> Toolchain:
    """Return this machine's toolchain: the running Python, its packages and the GPUs.

    - Without `container`, the toolchain's TensorRT-LLM version is `trtllm_version` or, by default,
      the installed version.
    - With `container`, builds run in the image `container.image` or, by default, in NVIDIA's image
      for `trtllm_version`. The toolchain's TensorRT-LLM version is the version in the image.

    Raise `BadInput` if `trtllm_version` is not a version. For a container, also raise `BadInput` if
    the version or a suitable image is unknown, if the image contains another version, if
    `container.examples` is not a folder, or if neither the image nor `container.examples` provides
    the example scripts.
    """
    packages = tuple(sorted({name for kind in all_kinds() for name in kind.building.tools}))
    gpus = _choose_gpus(find_gpus(), container.gpus if container else ())
    card = find_card(gpus[0].shown_as) if gpus else None
    image = choose_image(container.image, trtllm_version) if container else None
    if image is not None:
        version: Version | None = image.trtllm
    else:
        version = parse_version(trtllm_version) if trtllm_version else find_trtllm_version()
    return Toolchain(
        python=sys.executable,
        versions=find_versions(packages),
        trtllm_version=str(version) if version else None,
        gpu=card,
        gpu_name=card.name if card else (gpus[0].shown_as if gpus else None),
        num_gpus=len(gpus) or None,
        container=find_container_tools(container, image.name, _find_examples(container, image))
        if container and image
        else None,
    )


def _choose_gpus(gpus: tuple[PresentGpu, ...], ids: tuple[str, ...]) -> tuple[PresentGpu, ...]:
    """Return the GPUs with these ids, or all GPUs if `ids` is empty.

    Only GPU indices can be matched. If no id matches, for example because the ids are UUIDs, return
    the first `len(ids)` GPUs instead.
    """
    if not ids:
        return gpus
    chosen = tuple(gpu for gpu in gpus if str(gpu.index) in ids)
    return chosen or gpus[: len(ids)]


def _find_examples(container: ContainerOptions, image: BuildImage) -> Path:
    """Return the folder of TensorRT-LLM's example scripts.

    The folder from `--examples` takes precedence over the folder in the image. Raise `BadInput` if
    `--examples` is not a folder, or if it is not set and the image does not contain the scripts.
    """
    if container.examples is not None:
        if not container.examples.is_dir():
            raise BadInput(
                f"{container.examples} is not a folder.",
                why="--examples requires the `examples` folder of TensorRT-LLM's source repository",
                next_step=f"run `git clone -b v{image.trtllm} "
                "https://github.com/NVIDIA/TensorRT-LLM`, then pass --examples "
                "TensorRT-LLM/examples",
            )
        return container.examples
    if image.examples is None:
        raise BadInput(
            f"{image.name} does not contain TensorRT-LLM's example scripts.",
            why=f"tllm runs these scripts to build an engine with TensorRT-LLM {image.trtllm}",
            next_step=f"run `git clone -b v{image.trtllm} "
            "https://github.com/NVIDIA/TensorRT-LLM`, then pass --examples TensorRT-LLM/examples",
        )
    return image.examples


def check_computes_embeddings(kind: EngineKind, source: str) -> None:
    """Raise `BadInput` if the kind cannot serve the embedding model from `source`."""
    if "embedding" in kind.serving.layouts:
        return
    kinds = [each.name for each in all_kinds() if "embedding" in each.serving.layouts]
    raise BadInput(
        f"The {kind.name} engine kind does not compute embeddings.",
        why=f"{source} is an embedding model",
        next_step=f"choose --engine {' or --engine '.join(kinds)}",
    )


def _check_format(kind: EngineKind, request: BuildRequest) -> None:
    checkpoint = request.checkpoint
    if checkpoint.is_embedding_model:
        check_computes_embeddings(kind, checkpoint.source)
    if checkpoint.format in kind.building.formats:
        return
    needed = " or ".join(_FORMAT_NAMES[each] for each in sorted(kind.building.formats))
    raise BadInput(
        f"The {kind.name} engine kind requires {needed}.",
        why=f"{checkpoint.source} is {_FORMAT_NAMES[checkpoint.format]}",
        next_step="import a Hugging Face checkpoint of the model with -s hf:ORG/NAME, or choose "
        f"--engine {EMBEDDED}",
    )
