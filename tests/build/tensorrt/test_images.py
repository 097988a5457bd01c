"""Images for builds, and the folder of the example scripts in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from trtllm_serve_cli.build.tensorrt.images import BuildImage, choose_image
from trtllm_serve_cli.build.tensorrt.versions import Container, load_containers
from trtllm_serve_cli.errors import BadInput

NGC = "nvcr.io/nvidia/tritonserver:{}-trtllm-python-py3"
RELEASE = "nvcr.io/nvidia/tensorrt-llm/release:1.0.0"
IN_TRITON, IN_RELEASE = Path("/app/examples"), Path("/app/tensorrt_llm/examples")


@pytest.mark.parametrize(
    ("image", "version", "chosen"),
    [
        (None, "0.17.0", (NGC.format("25.01"), "0.17.0", IN_TRITON)),
        (None, "0.20.0", (NGC.format("25.07"), "0.20.0", IN_TRITON)),
        (None, "25.06", (NGC.format("25.06"), "0.20.0", IN_TRITON)),
        (None, "0.16.0", (NGC.format("24.12"), "0.16.0", None)),
        (NGC.format("25.03"), None, (NGC.format("25.03"), "0.18.0", IN_TRITON)),
        (NGC.format("25.03"), "0.18.0", (NGC.format("25.03"), "0.18.0", IN_TRITON)),
        (RELEASE, None, (RELEASE, "1.0.0", IN_RELEASE)),
        ("mine:1", "0.17.0", ("mine:1", "0.17.0", IN_TRITON)),
        ("mine:1", "0.16.0", ("mine:1", "0.16.0", None)),
    ],
)
def test_image_is_chosen(
    image: str | None, version: str | None, chosen: tuple[str, str, Path | None]
) -> None:
    name, trtllm, examples = chosen
    assert choose_image(image, version) == BuildImage(name, Version(trtllm), examples)


@pytest.mark.parametrize("container", load_containers(), ids=lambda each: each.tag)
def test_tag_names_the_same_image(container: Container) -> None:
    assert choose_image(None, container.tag) == choose_image(container.image, None)


def test_copy_of_an_image_in_another_registry_has_its_version() -> None:
    copy = "mirror.local:5000/tritonserver:25.03-trtllm-python-py3"
    assert choose_image(copy, None).trtllm == Version("0.18.0")


@pytest.mark.parametrize(
    ("image", "version", "error"),
    [
        (
            None, None,
            "No TensorRT-LLM version was specified for the build.\n"
            "Why: a build in a container uses the version in the image, not the installed version\n"
            "Next: pass the version, for example --trtllm-version 1.2.1, or an image with --image",
        ),
        (
            "mine", None,
            "The TensorRT-LLM version in mine is not known.\n"
            "Why: the image is not one of the NVIDIA images that tllm knows\n"
            "Next: pass the version, for example --trtllm-version 0.17.0",
        ),
        (
            RELEASE, "0.17.0",
            f"{RELEASE} does not contain TensorRT-LLM 0.17.0.\n"
            "Why: the image contains TensorRT-LLM 1.0.0\n"
            "Next: omit --trtllm-version or --image",
        ),
    ],
)  # fmt: skip
def test_unknown_or_different_version_is_refused(
    image: str | None, version: str | None, error: str
) -> None:
    with pytest.raises(BadInput) as raised:
        choose_image(image, version)
    assert str(raised.value) == error


def test_version_without_an_image_lists_the_versions_with_images() -> None:
    with pytest.raises(
        BadInput, match=r"^No known image contains TensorRT-LLM 0\.18\.1\."
    ) as raised:
        choose_image(None, "0.18.1")
    assert "0.18.0, 0.18.2, 0.19.0" in raised.value.why
