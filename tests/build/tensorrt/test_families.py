"""Converters of architectures by version."""

from __future__ import annotations

from types import MappingProxyType
from typing import get_args

import pytest
from packaging.version import Version

from tests.build.tensorrt.samples import VERSIONS
from trtllm_serve_cli.build.tensorrt.families import Family, find_family
from trtllm_serve_cli.build.tensorrt.flags import flags_of
from trtllm_serve_cli.build.tensorrt.versions import load_table
from trtllm_serve_cli.choices import Quantization
from trtllm_serve_cli.errors import BadInput

TABLE = load_table("families.yaml")
ARCHITECTURES = [each for row in TABLE.values() for each in row["architectures"]]


def test_family_by_version() -> None:
    assert find_family("MixtralForCausalLM", Version("0.11.0")) == Family(
        name="llama",
        architecture="MixtralForCausalLM",
        folder="llama",
        quantizations=("int8", "int4", "fp8"),
        later_quantizations=MappingProxyType(
            {"nvfp4": Version("0.17.0"), "int4_awq": Version("0.19.0")}
        ),
    )


@pytest.mark.parametrize(
    ("architecture", "version", "folder"),
    [
        ("LlamaForCausalLM", "0.19.0", "llama"),
        ("LlamaForCausalLM", "0.20.0", "models/core/llama"),
        ("FalconForCausalLM", "1.2.0", "models/contrib/falcon"),
        ("ChatGLMModel", "0.18.2", "chatglm"),
        ("ChatGLMModel", "1.0.0", "models/core/glm-4-9b"),
    ],
)
def test_converters_moved_in_0_20(architecture: str, version: str, folder: str) -> None:
    assert find_family(architecture, Version(version)).folder == folder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_family_has_its_converter_in_every_version(architecture: str) -> None:
    for version in VERSIONS:
        try:
            family = find_family(architecture, version)
        except BadInput:
            continue
        flags = flags_of(family.converter, version)
        needed = {family.flag_names.get(each, each) for each in ("--model_dir", "--output_dir")}
        assert {*needed, "--dtype"} <= set(flags)
        assert {*family.quantizations, *family.later_quantizations} <= {*get_args(Quantization)}


def test_architecture_of_a_later_version_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        find_family("Qwen3ForCausalLM", Version("0.19.0"))
    assert str(raised.value) == (
        "TensorRT-LLM 0.19.0 does not convert Qwen3ForCausalLM.\n"
        "Why: support was added in 0.20.0\n"
        "Next: use TensorRT-LLM 0.20.0 or later"
    )


def test_architecture_without_a_converter_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        find_family("GptOssForCausalLM", Version("1.2.0"))
    assert str(raised.value) == (
        "TensorRT engines do not support the architecture GptOssForCausalLM.\n"
        f"Why: the supported architectures are {', '.join(ARCHITECTURES)}\n"
        "Next: use --engine pytorch with TensorRT-LLM 1.0 or later"
    )
