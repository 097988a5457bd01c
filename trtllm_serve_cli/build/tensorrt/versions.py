"""Look up TensorRT-LLM versions and the containers that include them.

`check_builds_engines` checks whether a version builds TensorRT engines. Versions are compared
according to PEP 440, including post-releases, release candidates and development builds.
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

# The first release of TensorRT-LLM is 0.5. Versions after 1.2 do not build engines
# (docs/source/legacy/tensorrt-backend-removal.md in NVIDIA/TensorRT-LLM).
FIRST_WITH_ENGINES = Version("0.5.0")
FIRST_WITHOUT_ENGINES = Version("1.3.0.dev0")
# First version whose LLM API runs checkpoints with PyTorch by default, without building an engine.
FIRST_WITH_PYTORCH = Version("1.0.0.dev0")
_TAG = re.compile(r"\d\d\.\d\d")


@dataclass(frozen=True, slots=True)
class Container:
    """A release of NVIDIA's container with Triton and TensorRT-LLM.

    `tag` is the release month, for example "24.07". `triton` and `trtllm` are the versions in the
    container. `cuda` is the major CUDA version, or `None` if the version is unknown.
    """

    tag: str
    triton: Version
    trtllm: Version
    cuda: int | None = None

    @property
    def image(self) -> str:
        return f"nvcr.io/nvidia/tritonserver:{self.tag}-trtllm-python-py3"


def parse_version(text: str) -> Version:
    """Parse a version ("0.17.0.post1") or a container tag ("24.07").

    Raise `BadInput` if `text` is not valid, or if tllm does not know the container.
    """
    if container := find_container(text):
        return container.trtllm
    if _TAG.fullmatch(text):
        first, last = load_containers()[0].tag, load_containers()[-1].tag
        raise BadInput(
            f"The TensorRT-LLM version in the {text} container is not known.",
            why=f"the known containers are {first} to {last}",
            next_step="pass the TensorRT-LLM version, for example --trtllm-version 1.2.1",
        )
    try:
        return Version(text)
    except InvalidVersion as error:
        raise BadInput(
            f"{text!r} is not a valid TensorRT-LLM version.",
            why="valid versions are, for example, 0.11.0, 0.17.0.post1 and the container tag 24.07",
            next_step="run `pip show tensorrt_llm` to see the installed version",
        ) from error


def find_trtllm_version(
    find_version: Callable[[str], str | None] = find_version,
) -> Version | None:
    """Return the installed TensorRT-LLM version, or `None` if TensorRT-LLM is not installed."""
    text = find_version("tensorrt_llm")
    return Version(text) if text else None


def check_builds_engines(version: Version) -> None:
    """Raise `BadInput` unless the version builds TensorRT engines (0.5 to 1.2)."""
    if version < FIRST_WITH_ENGINES:
        raise BadInput(
            f"TensorRT-LLM {version} is too old to build engines with tllm.",
            why="version 0.5 is the first release of TensorRT-LLM",
            next_step="use TensorRT-LLM 0.9 or later",
        )
    if version >= FIRST_WITHOUT_ENGINES:
        last = [each for each in load_containers() if each.trtllm < FIRST_WITHOUT_ENGINES][-1]
        raise BadInput(
            f"TensorRT-LLM {version} does not build engines.",
            why="1.2 is the last release line with trtllm-build and the C++ backend",
            next_step="use --engine pytorch to serve the checkpoint directly, or build the engine "
            f"in {last.image}",
        )


def find_container(tag: str) -> Container | None:
    """Return the container with this tag, or `None` if the tag is not known."""
    return next((each for each in load_containers() if each.tag == tag), None)


def find_containers(version: Version) -> tuple[Container, ...]:
    """Return the containers with exactly this TensorRT-LLM version, oldest first."""
    return tuple(each for each in load_containers() if each.trtllm == version)


@functools.cache
def load_containers() -> tuple[Container, ...]:
    """Return all known containers, oldest first."""
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
    """Return the parsed content of a YAML file in this package."""
    import yaml

    text = resources.files("trtllm_serve_cli.build.tensorrt").joinpath(name).read_text("utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
