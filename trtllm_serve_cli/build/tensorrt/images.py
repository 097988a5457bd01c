"""Choose the container image for a build and find TensorRT-LLM's example scripts in the image.

Sources: Triton's images are built from dockerfile/Dockerfile.triton.trt_llm_backend in
triton-inference-server/tensorrtllm_backend, which has copied the examples to /app/examples since
v0.17.0. TensorRT-LLM's images are built from the `release` stage of docker/Dockerfile.multi in
NVIDIA/TensorRT-LLM, which copies the examples to /app/tensorrt_llm/examples.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from trtllm_serve_cli.build.tensorrt.toolkit import FIRST_IN_IMAGE, IN_IMAGE
from trtllm_serve_cli.build.tensorrt.versions import (
    FIRST_WITHOUT_ENGINES,
    Container,
    find_container,
    find_containers,
    load_containers,
    parse_version,
)
from trtllm_serve_cli.errors import BadInput

_TRITON = re.compile(r"(?:^|/)tritonserver:(\d\d\.\d\d)-trtllm-python-py3$")
_RELEASE = re.compile(r"(?:^|/)tensorrt-llm/release:([^/:]+)$")
_IN_RELEASE = Path("/app/tensorrt_llm/examples")


@dataclass(frozen=True, slots=True)
class BuildImage:
    """A container image that contains TensorRT-LLM version `trtllm`.

    `examples` is the image's folder with the example scripts, or None if the image does not contain
    them. Images from other publishers are assumed to have the same folder as NVIDIA's Triton image
    with this version.
    """

    name: str
    trtllm: Version
    examples: Path | None


def choose_image(image: str | None, trtllm_version: str | None) -> BuildImage:
    """Return the image for a build.

    By default, return NVIDIA's Triton image for `trtllm_version`, which is a version or an image
    tag such as "25.02". If `image` is one of NVIDIA's images, its tag determines the version. Raise
    `BadInput` if the version is not valid or not known, if no known image contains it, or if
    `image` contains a different version.
    """
    requested = parse_version(trtllm_version) if trtllm_version else None
    if image is None:
        container = _find_container(trtllm_version, requested)
        return BuildImage(container.image, container.trtllm, _triton_examples(container.trtllm))
    known = _read_tag(image)
    if known is None and requested is None:
        raise BadInput(
            f"The TensorRT-LLM version in {image} is not known.",
            why="the image is not one of the NVIDIA images that tllm knows",
            next_step="pass the version, for example --trtllm-version 0.17.0",
        )
    if known and requested and known != requested:
        raise BadInput(
            f"{image} does not contain TensorRT-LLM {requested}.",
            why=f"the image contains TensorRT-LLM {known}",
            next_step="omit --trtllm-version or --image",
        )
    version = known or requested
    assert version is not None
    is_release = _RELEASE.search(image) is not None
    return BuildImage(image, version, _IN_RELEASE if is_release else _triton_examples(version))


def _find_container(text: str | None, version: Version | None) -> Container:
    if text is None or version is None:
        last = [each for each in load_containers() if each.trtllm < FIRST_WITHOUT_ENGINES][-1]
        raise BadInput(
            "No TensorRT-LLM version was specified for the build.",
            why="a build in a container uses the version in the image, not the installed version",
            next_step=f"pass the version, for example --trtllm-version {last.trtllm}, or an image "
            "with --image",
        )
    if container := find_container(text):
        return container
    if containers := find_containers(version):
        return containers[-1]
    versions = dict.fromkeys(str(each.trtllm) for each in load_containers())
    raise BadInput(
        f"No known image contains TensorRT-LLM {version}.",
        why=f"NVIDIA's Triton images contain the versions {', '.join(versions)}",
        next_step="pass one of these versions, or pass --image with an image that contains "
        f"TensorRT-LLM {version}",
    )


def _read_tag(image: str) -> Version | None:
    """Return the TensorRT-LLM version in one of NVIDIA's images, or `None` if it is not known."""
    if found := _TRITON.search(image):
        container = find_container(found[1])
        return container.trtllm if container else None
    if found := _RELEASE.search(image):
        try:
            return Version(found[1])
        except InvalidVersion:
            return None
    return None


def _triton_examples(version: Version) -> Path | None:
    return IN_IMAGE if version >= FIRST_IN_IMAGE else None
