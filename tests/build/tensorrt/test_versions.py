"""Versions of TensorRT-LLM, their containers, and which of them build engines."""

from __future__ import annotations

import itertools

import pytest
from packaging.version import Version

from trtllm_serve_cli.build.tensorrt.versions import (
    check_builds_engines,
    find_container,
    find_containers,
    find_trtllm_version,
    load_containers,
    parse_version,
)
from trtllm_serve_cli.errors import BadInput


def test_versions_compare_as_in_pip() -> None:
    texts = ["0.9.0", "0.10.0", "0.14.0.dev2024100800", "0.14.0", "0.17.0", "0.17.0.post1",
             "1.0.0", "1.0.3.2510", "1.2.0rc6", "1.2.0"]  # fmt: skip
    assert sorted(map(parse_version, reversed(texts))) == [Version(text) for text in texts]


def test_container_tag_is_parsed_as_its_version() -> None:
    assert parse_version("24.07") == Version("0.11.0")


def test_containers_of_a_version() -> None:
    assert [each.image for each in find_containers(Version("1.2.0"))] == [
        "nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3"
    ]
    assert [each.tag for each in find_containers(Version("0.20.0"))] == ["25.06", "25.07"]
    assert find_containers(Version("0.11.1")) == ()
    assert find_container("23.09") is None


def test_newer_containers_have_no_older_programs() -> None:
    containers = load_containers()
    assert list(containers) == sorted(containers, key=lambda each: each.tag)
    for one, next_one in itertools.pairwise(containers):
        assert one.triton < next_one.triton
        assert one.trtllm <= next_one.trtllm


def test_invalid_version_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        parse_version("latest")
    assert str(raised.value) == (
        "'latest' is not a valid TensorRT-LLM version.\n"
        "Why: valid versions are, for example, 0.11.0, 0.17.0.post1 and the container tag 24.07\n"
        "Next: run `pip show tensorrt_llm` to see the installed version"
    )


def test_unknown_container_tag_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        parse_version("29.12")
    assert str(raised.value) == (
        "The TensorRT-LLM version in the 29.12 container is not known.\n"
        "Why: the known containers are 23.10 to 26.07\n"
        "Next: pass the TensorRT-LLM version, for example --trtllm-version 1.2.1"
    )


def test_installed_version_is_found() -> None:
    assert find_trtllm_version({"tensorrt_llm": "1.2.0rc6"}.get) == Version("1.2.0rc6")


def test_no_version_is_found_if_none_is_installed() -> None:
    assert find_trtllm_version({}.get) is None


@pytest.mark.parametrize("text", ["0.5.0", "0.14.0.dev2024100800", "1.0.3.2510", "1.2.1"])
def test_supported_versions_build_engines(text: str) -> None:
    check_builds_engines(Version(text))


def test_versions_before_the_first_release_are_refused() -> None:
    with pytest.raises(BadInput) as raised:
        check_builds_engines(Version("0.4.0"))
    assert str(raised.value) == (
        "TensorRT-LLM 0.4.0 is too old to build engines with tllm.\n"
        "Why: version 0.5 is the first release of TensorRT-LLM\n"
        "Next: use TensorRT-LLM 0.9 or later"
    )


@pytest.mark.parametrize("text", ["1.3.0rc1", "1.3.0", "2.0"])
def test_versions_without_engines_are_refused(text: str) -> None:
    with pytest.raises(BadInput) as raised:
        check_builds_engines(Version(text))
    assert str(raised.value) == (
        f"TensorRT-LLM {text} does not build engines.\n"
        "Why: 1.2 is the last release line with trtllm-build and the C++ backend\n"
        "Next: use --engine pytorch to serve the checkpoint directly, or build the engine in "
        "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    )
