"""Which engine kind a machine gets."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.build import EngineChoice, choose_engine_kind
from trtllm_serve_cli.build.kinds import has_package
from trtllm_serve_cli.errors import BadInput, MissingPart


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("auto", "Engine kind openvino: it runs on any CPU, and openvino-genai is installed."),
        ("openvino", "Engine kind openvino, as asked for."),
    ],
)
def test_choice_says_why(wanted: str, reason: str) -> None:
    choice = choose_engine_kind(wanted, has_package=lambda name: name == "openvino_genai")
    assert choice == EngineChoice("openvino", reason)


def test_missing_package_comes_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingPart) as raised:
        choose_engine_kind("auto", has_package=lambda name: False)
    assert str(raised.value) == (
        "The engine kind openvino is not installed.\n"
        "Why: the package openvino-genai is missing\n"
        "Next: pip install 'trtllm-serve-cli[embedded]'"
    )


@pytest.mark.parametrize(
    ("name", "is_there"), [("json", True), ("nowhere", False), ("nowhere.inside", False)]
)
def test_package_is_looked_for_without_its_parent(name: str, is_there: bool) -> None:
    assert has_package(name) is is_there


@pytest.mark.parametrize(
    ("kind", "next_step"),
    [("tensorrt", "build it there, then import what it left: "), ("vllm", "choose its layout: ")],
)
def test_engine_that_is_not_built_here_comes_with_what_to_do(kind: str, next_step: str) -> None:
    with pytest.raises(BadInput, match=f"No engine of the kind {kind} is built here") as raised:
        choose_engine_kind(kind)
    assert raised.value.next_step.startswith(next_step)
