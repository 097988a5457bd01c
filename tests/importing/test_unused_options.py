"""Options that have no effect on the engine kind or the source of an import."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection
from trtllm_serve_cli.importing.unused_options import drop_unused, refuse_unused
from trtllm_serve_cli.sources.registry import parse_source

CHECKPOINT = "local:/models/mine"
ENGINE = "engine:/engines/mine"


def declare(
    source: str, engine: dict[str, Any] | None = None, build: dict[str, Any] | None = None
) -> Declaration:
    return Declaration(
        ModelSection("mine", source), EngineSection(**engine or {}), EngineOptions(**build or {})
    )


@pytest.mark.parametrize(
    ("kind", "engine", "option", "user"),
    [
        ("openvino", {"gpu": "h200"}, "--gpu", "sim"),
        ("openvino", {"timing": Path("t.json")}, "--timing", "sim"),
        ("openvino", {"trtllm_version": "0.17.0"}, "--trtllm-version", "tensorrt"),
        ("vllm", {"trtllm_version": "0.17.0"}, "--trtllm-version", "tensorrt"),
        ("pytorch", {"dir": Path("e")}, "--engine-dir", "tensorrt"),
    ],
)
def test_option_of_another_kind_is_refused(
    kind: str, engine: dict[str, Any], option: str, user: str
) -> None:
    declaration, source = declare(CHECKPOINT, engine), parse_source(CHECKPOINT)
    with pytest.raises(BadInput) as raised:
        refuse_unused(declaration, kind, source)
    assert raised.value.what == f"The {kind} engine kind does not accept {option}."
    assert f"use --engine {user} {option}" in raised.value.next_step
    refuse_unused(declaration, user, source)
    assert drop_unused(declaration, kind, source) == declare(CHECKPOINT)


def test_options_of_a_build_are_refused_for_an_engine() -> None:
    declaration = declare(
        ENGINE,
        {"trtllm_version": "0.9.0", "mode": "container", "image": "x", "dir": Path("e")},
        {"tp": 4, "quantization": "fp8", "gemm_plugin": "auto", "max_batch_size": 8},
    )
    model = dataclasses.replace(declaration.model, trust_remote_code=True)
    declaration = dataclasses.replace(declaration, model=model)
    with pytest.raises(BadInput) as raised:
        refuse_unused(declaration, "tensorrt", parse_source(ENGINE))
    assert str(raised.value).splitlines()[:2] == [
        "engine:/engines/mine does not accept --trust-remote-code, --trtllm-version, --engine-dir, "
        "--mode, --image, --tp, --quantization, gemm_plugin.",
        "Why: the source is an engine, so nothing is built or downloaded",
    ]
    kept = drop_unused(declaration, "tensorrt", parse_source(ENGINE))
    assert kept == declare(ENGINE, build={"max_batch_size": 8})
    refuse_unused(kept, "tensorrt", parse_source(ENGINE))
