"""Selection of the engine kind for a machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from trtllm_serve_cli.build.installed import find_version
from trtllm_serve_cli.engine_kinds.machine import EngineChoice, Machine
from trtllm_serve_cli.engine_kinds.selection import (
    choose_engine_kind,
    choose_for_layout,
    detect_machine,
    find_native_kind,
)
from trtllm_serve_cli.errors import MissingPart

OPENVINO = {"openvino-genai": "2026.4.1"}
LAPTOP = Machine(versions=OPENVINO)
GPU_BOX = dataclasses.replace(LAPTOP, gpus=("NVIDIA H200", "NVIDIA H200"))
CONTAINER = Machine(gpus=("NVIDIA H200",), versions={"tensorrt_llm": "1.2.0"})
OLD_CONTAINER = Machine(gpus=("NVIDIA A100-SXM4-80GB",), versions={"tensorrt_llm": "0.16.0"})


@pytest.mark.parametrize(
    ("requested", "machine", "kind", "reason"),
    [
        ("auto", LAPTOP, "openvino", "it runs on any CPU, and openvino-genai is installed."),
        ("openvino", LAPTOP, "openvino", None),
        ("tensorrt", LAPTOP, "tensorrt", None),
        ("pytorch", LAPTOP, "pytorch", None),
        (
            "openvino",
            dataclasses.replace(CONTAINER, versions=CONTAINER.versions | OPENVINO),
            "openvino",
            None,
        ),
        (
            "auto",
            CONTAINER,
            "pytorch",
            "TensorRT-LLM 1.2.0, installed here with 1 x NVIDIA H200, serves a checkpoint "
            "directly.",
        ),
        (
            "auto",
            OLD_CONTAINER,
            "tensorrt",
            "TensorRT-LLM 0.16.0, installed here with 1 x NVIDIA A100-SXM4-80GB, serves the "
            "engines that it builds.",
        ),
        (
            "auto",
            GPU_BOX,
            "openvino",
            "it runs on any CPU, and openvino-genai is installed. To use 2 x NVIDIA H200 with "
            "TensorRT-LLM, run this command in one of NVIDIA's containers, or set "
            "--trtllm-version and build the engine in a container.",
        ),
        (
            "auto",
            Machine(versions=OPENVINO | {"tensorrt_llm": "1.2.0"}),
            "openvino",
            "it runs on any CPU, and openvino-genai is installed.",
        ),
    ],
)
def test_choice_has_its_reason(
    requested: str, machine: Machine, kind: str, reason: str | None
) -> None:
    expected = f"Engine kind {kind}: {reason}" if reason else f"Engine kind {kind}, as requested."
    assert choose_engine_kind(requested, machine) == EngineChoice(kind, expected)


@pytest.mark.parametrize(("version", "kind"), [("0.9.0", "tensorrt"), ("1.0.0", "pytorch")])
def test_requested_version_counts_as_installed(version: str, kind: str) -> None:
    choice = choose_engine_kind("auto", LAPTOP, trtllm_version=version)
    assert choice.kind == kind
    assert choice.reason.startswith(f"Engine kind {kind}: TensorRT-LLM {version}, as requested, ")


@pytest.mark.parametrize("requested", ["auto", "openvino"])
def test_missing_package_error_has_the_install_command(requested: str) -> None:
    with pytest.raises(MissingPart) as raised:
        choose_engine_kind(requested, Machine())
    assert str(raised.value) == (
        "OpenVINO GenAI is not installed.\n"
        "Why: the openvino engine kind requires the openvino-genai package\n"
        "Next: run `pip install 'trtllm-serve-cli[embedded]'` to install it"
    )


def test_chooses_the_python_that_has_vllm() -> None:
    machine = Machine(gpus=("NVIDIA H200",), pythons={"vllm": "/vllm/bin/python3"})
    assert choose_engine_kind("vllm", machine) == EngineChoice(
        "vllm", "Engine kind vllm, as requested.", "/vllm/bin/python3"
    )
    assert choose_engine_kind("auto", machine) == EngineChoice(
        "vllm",
        "Engine kind vllm: /vllm/bin/python3 has vLLM, and this machine has 1 x NVIDIA H200.",
        "/vllm/bin/python3",
    )


def test_missing_vllm_error_has_the_install_commands() -> None:
    with pytest.raises(MissingPart, match="vLLM is not installed") as raised:
        choose_engine_kind("vllm", LAPTOP)
    assert "--param engine_python=$PWD/vllm-env/bin/python3" in (raised.value.next_step or "")


def _write_program(path: Path, script: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("requested", "named", "found"),
    [
        ("auto", "", "on-path/python3"),
        ("auto", "with/python3", "with/python3"),
        ("auto", "without/python3", None),
        ("auto", "nowhere/python3", None),
        # The package may be on the machine that serves.
        ("vllm", "nowhere/python3", "nowhere/python3"),
        ("openvino", "with/python3", None),
    ],
)
def test_engine_python_is_used_for_vllm_if_it_has_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requested: str, named: str, found: str | None
) -> None:
    for folder, code in (("on-path", 0), ("with", 0), ("without", 1)):
        _write_program(tmp_path / folder / "python3", f"exit {code}")
    _write_program(tmp_path / "on-path" / "nvidia-smi", "echo '0, NVIDIA H200, 143771, Disabled'")
    monkeypatch.setenv("PATH", str(tmp_path / "on-path"))
    machine = detect_machine(requested, named and str(tmp_path / named))
    assert machine.gpus == ("NVIDIA H200",)
    assert machine.pythons.get("vllm") == (found and str(tmp_path / found))


def test_detects_the_installed_openvino() -> None:
    version = find_version("openvino-genai")
    assert detect_machine().versions["openvino-genai"] == version is not None


def test_auto_chooses_a_kind_that_the_layout_supports() -> None:
    machine = dataclasses.replace(OLD_CONTAINER, versions=OLD_CONTAINER.versions | OPENVINO)
    assert choose_for_layout("gpt", machine).kind == "openvino"
    assert choose_for_layout("gpt", CONTAINER).kind == "pytorch"


def test_vllm_layout_is_native_to_vllm() -> None:
    native = find_native_kind("vllm")
    assert native is not None and native.name == "vllm"
    assert find_native_kind("gpt") is None
