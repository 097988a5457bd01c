"""Versions of TensorRT-LLM: the one that is here, containers with it, whether it builds engines.

Versions are PEP 440's: posts, release candidates and development builds compare as pip has them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from packaging.version import InvalidVersion, Version

from trtllm_serve_cli.build.installed import find_version
from trtllm_serve_cli.errors import BadInput

# trtllm-build took the place of each model's own build.py in 0.8; after 1.2 there are no engines
# (docs/source/legacy/tensorrt-backend-removal.md in NVIDIA/TensorRT-LLM).
FIRST_WITH_ENGINES = Version("0.8.0")
FIRST_WITHOUT_ENGINES = Version("1.3.0.dev0")
# The LLM API serves checkpoints by default from here on.
FIRST_WITH_PYTORCH = Version("1.0.0.dev0")
_TAG = re.compile(r"\d\d\.\d\d")


@dataclass(frozen=True, slots=True)
class Container:
    """NVIDIA's container of Triton with TensorRT-LLM; `tag` is its month, such as "24.07".

    `cuda` is the major version of its CUDA, None where that is not known.
    """

    tag: str
    triton: Version
    trtllm: Version
    cuda: int | None = None

    @property
    def image(self) -> str:
        return f"nvcr.io/nvidia/tritonserver:{self.tag}-trtllm-python-py3"


def parse_version(text: str) -> Version:
    """Of "0.17.0.post1", or of a container's tag such as "24.07". Raises `BadInput` for others."""
    if container := find_container(text):
        return container.trtllm
    if _TAG.fullmatch(text):
        first, last = load_containers()[0].tag, load_containers()[-1].tag
        raise BadInput(
            f"Which TensorRT-LLM is in the container {text} is not known.",
            why=f"known are those from {first} to {last}",
            next_step="say the version itself, such as --trtllm-version 1.2.1",
        )
    try:
        return Version(text)
    except InvalidVersion as error:
        raise BadInput(
            f"{text!r} is no version of TensorRT-LLM.",
            why="a version is such as 0.11.0 or 0.17.0.post1, a container's tag such as 24.07",
            next_step="pip show tensorrt_llm",
        ) from error


def find_trtllm_version(
    find_version: Callable[[str], str | None] = find_version,
) -> Version | None:
    """Of the TensorRT-LLM installed beside this program, which is not imported for that."""
    text = find_version("tensorrt_llm")
    return Version(text) if text else None


def check_builds_engines(version: Version) -> None:
    """Raises `BadInput` for a version before the unified builder, or after engines."""
    if version < FIRST_WITH_ENGINES:
        first = find_containers(FIRST_WITH_ENGINES)[0]
        raise BadInput(
            f"Engines of TensorRT-LLM {version} cannot be planned.",
            why="before 0.8 each model had a build.py of its own, without trtllm-build",
            next_step=f"use TensorRT-LLM 0.8 or later, such as in {first.image}",
        )
    if version >= FIRST_WITHOUT_ENGINES:
        last = [each for each in load_containers() if each.trtllm < FIRST_WITHOUT_ENGINES][-1]
        raise BadInput(
            f"TensorRT-LLM {version} builds no engines.",
            why="1.2 is the last line with trtllm-build and the C++ backend",
            next_step=f"--engine pytorch serves the checkpoint itself; or use {last.image}",
        )


def find_container(tag: str) -> Container | None:
    """The container of this month."""
    return next((each for each in load_containers() if each.tag == tag), None)


def find_containers(version: Version) -> tuple[Container, ...]:
    """Those with exactly this TensorRT-LLM, the oldest first."""
    return tuple(each for each in load_containers() if each.trtllm == version)


@functools.cache
def load_containers() -> tuple[Container, ...]:
    """All that are known, the oldest first."""
    return tuple(
        Container(
            row["tag"],
            Version(row["triton"]),
            Version(row["trtllm"]),
            int(row["cuda"].partition(".")[0]) if "cuda" in row else None,
        )
        for row in load_table("containers.yaml")
    )


def load_table(name: str) -> Any:
    """What a YAML file of this package says."""
    import yaml

    text = resources.files("trtllm_serve_cli.build.tensorrt").joinpath(name).read_text("utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
