"""Converters of architectures by version."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import get_args

import pytest
from packaging.version import Version

from tests.build.tensorrt.samples import MODELS, VERSIONS, options_in, plan
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


@pytest.mark.parametrize(
    ("model", "version", "published_name", "expected"),
    [
        ("gpt2-medium", "0.9.0", "", ("--gpt_variant", "gpt2")),
        ("gpt2-medium", "1.2.0", "", ("--gpt_variant", "gpt2")),
        ("minitron-4b", "0.16.0", "", ("--gpt_variant", "nemotron")),
        ("jais-13b", "0.16.0", "", None),
        ("chatglm3-6b", "0.11.0", "THUDM/chatglm3-6b", ("--chatglm_version", "chatglm3")),
        ("chatglm3-6b", "0.11.0", "THUDM/chatglm2-6b", ("--chatglm_version", "chatglm2")),
        ("chatglm3-6b", "0.11.0", "local:./checkpoint", None),
        ("qwen-2.5-7b", "0.10.0", "", ("--qwen_type", "qwen2")),
        ("qwen-2.5-7b", "0.11.0", "", None),
        ("baichuan-13b", "0.8.0", "", ("--model_version", "v1_13b")),
    ],
)
def test_variant_is_passed_to_the_converter(
    model: str, version: str, published_name: str, expected: tuple[str, str] | None
) -> None:
    step, _ = plan(model, version, published_name=published_name)
    flags = {"--gpt_variant", "--chatglm_version", "--qwen_type", "--model_version"}
    variant = {name: value for name, value in options_in(step.command).items() if name in flags}
    assert tuple(variant.items()) == ((expected,) if expected else ())


def test_variant_that_the_version_lacks_is_refused() -> None:
    glm4 = replace(MODELS["chatglm3-6b"], vocab_size=151552)
    with pytest.raises(BadInput) as raised:
        plan(glm4, "0.11.0")
    assert str(raised.value) == (
        "TensorRT-LLM 0.11.0 does not convert glm4 models.\n"
        "Why: in this version, the converter supports only glm, chatglm, chatglm2, chatglm3\n"
        "Next: use a later version of TensorRT-LLM"
    )


def test_architecture_that_needs_another_program_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        find_family("T5ForConditionalGeneration", Version("0.16.0"))
    assert str(raised.value) == (
        "tllm cannot build TensorRT engines for T5ForConditionalGeneration.\n"
        "Why: an encoder-decoder model needs two engines, but tllm builds one engine for each "
        "model\n"
        "Next: build the engine as described in TensorRT-LLM's examples/enc_dec/README.md"
    )


def test_no_architecture_is_both_planned_and_unplanned() -> None:
    unplanned = [name for row in load_table("unplanned.yaml") for name in row["architectures"]]
    assert not {*unplanned} & {*ARCHITECTURES}
    assert len({*unplanned}) == len(unplanned)


def test_architecture_of_a_later_version_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        find_family("Qwen3ForCausalLM", Version("0.21.0"))
    assert str(raised.value) == (
        "TensorRT-LLM 0.21.0 does not convert Qwen3ForCausalLM.\n"
        "Why: support was added in 1.0.0\n"
        "Next: use TensorRT-LLM 1.0.0 or later"
    )


def test_mixture_of_experts_of_qwen_3_is_converted() -> None:
    step, _ = plan("qwen-3-30b-a3b", "1.0.0", tp=8, moe_ep=8)
    assert options_in(step.command)["--moe_ep_size"] == "8"


def test_architecture_without_a_converter_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        find_family("GptOssForCausalLM", Version("1.2.0"))
    assert str(raised.value) == (
        "TensorRT engines do not support the GptOssForCausalLM architecture.\n"
        f"Why: the supported architectures are {', '.join(ARCHITECTURES)}\n"
        "Next: use --engine pytorch with TensorRT-LLM 1.0 or later"
    )
