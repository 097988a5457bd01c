"""Flags of upstream's programs that users set directly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.build.tensorrt.samples import VERSIONS, check_step, options_in, plan
from trtllm_serve_cli.build.tensorrt.flags import Flag, flags_of, is_flag, is_owned
from trtllm_serve_cli.errors import BadInput

_PROGRAMS = ("llama/convert_checkpoint.py", "trtllm-build")


def refuse(version: str, model: str = "llama-2-7b", **options: Any) -> str:
    with pytest.raises(BadInput) as raised:
        plan(model, version, **options)
    return str(raised.value)


def test_flags_are_passed_to_each_program_that_has_them() -> None:
    flags = {"reduce_fusion": "enable", "log_level": "verbose", "load_by_shard": "true"}
    converter, builder = (
        options_in(step.command) for step in plan("llama-2-7b", "0.16.0", flags=flags)
    )
    assert converter.items() >= {"--log_level": "verbose", "--load_by_shard": ""}.items()
    assert builder.items() >= {"--log_level": "verbose", "--reduce_fusion": "enable"}.items()
    assert "--reduce_fusion" not in converter
    assert "--load_by_shard" not in builder


def test_flag_without_a_value_is_omitted_if_it_is_false() -> None:
    flags = {"strip_plan": "false", "weight_streaming": "true"}
    builder = options_in(plan("llama-2-7b", "0.16.0", flags=flags)[1].command)
    assert "--strip_plan" not in builder
    assert builder["--weight_streaming"] == ""


def test_hyphens_and_underscores_are_the_same() -> None:
    flags = {"convert_model_on_cpu": "true"}
    heads = {"speculative_decoding_mode": "medusa", "speculative_model": "heads"}
    step, _ = plan("llama-2-7b", "0.16.0", flags=flags, **heads)
    assert "--convert-model-on-cpu" in step.command


def test_flag_replaces_a_derived_value() -> None:
    options = {"lora_target_modules": ("attn_q",), "dtype": "float16"}
    builder = plan("llama-2-7b", "0.16.0", flags={"lora_plugin": "bfloat16"}, **options)[1]
    assert builder.command.count("--lora_plugin") == 1
    assert options_in(builder.command)["--lora_plugin"] == "bfloat16"


def test_files_that_flags_name_are_inputs() -> None:
    flags = {"quant_ckpt_path": "/quantized/weights.safetensors"}
    step, _ = plan("llama-2-7b", "0.16.0", quantization="int4_gptq", flags=flags)
    assert step.inputs == ("/models/my model", "/quantized/weights.safetensors")


def test_flag_of_quantize_py() -> None:
    step, _ = plan("llama-2-7b", "0.16.0", quantization="int4_awq", flags={"awq_block_size": "64"})
    assert options_in(step.command)["--awq_block_size"] == "64"


@pytest.mark.parametrize(
    ("version", "flags", "message"),
    [
        (
            "0.10.0",
            {"reduce_fusion": "enable"},
            "TensorRT-LLM 0.10.0 does not have the reduce_fusion flag.\n"
            "Why: the flag is available only in TensorRT-LLM 0.11.0 to 1.2.1\n"
            "Next: omit reduce_fusion, or use TensorRT-LLM 1.2.1",
        ),
        (
            "0.16.0",
            {"multi_block_mode": "enable"},
            "TensorRT-LLM 0.16.0 does not have the multi_block_mode flag.\n"
            "Why: the flag is available only in TensorRT-LLM 0.6.1 to 0.11.0\n"
            "Next: omit multi_block_mode, or use TensorRT-LLM 0.11.0",
        ),
        (
            "0.16.0",
            {"made_up": "1"},
            "TensorRT-LLM 0.16.0 does not have the made_up flag.\n"
            "Why: no TensorRT-LLM version supports this flag for this model\n"
            "Next: check the spelling, or omit the flag",
        ),
        (
            "0.16.0",
            {"awq_block_size": "64"},
            "The awq_block_size flag has no effect on this engine.\n"
            "Why: the flag applies to quantize.py, but this build runs convert_checkpoint.py for "
            "llama and trtllm-build\n"
            "Next: omit awq_block_size, or change --quantization or --kv-cache-dtype so that "
            "the build runs quantize.py",
        ),
        (
            "0.16.0",
            {"tp_size": "2"},
            "The tp_size flag cannot be set directly.\n"
            "Why: tllm's tp option sets this flag\n"
            "Next: pass --build-option tp=VALUE",
        ),
        (
            "0.16.0",
            {"checkpoint_dir": "folder"},
            "The checkpoint_dir flag cannot be set directly.\n"
            "Why: tllm sets this flag itself\n"
            "Next: omit checkpoint_dir",
        ),
        (
            "0.16.0",
            {"max_batch_size": "8"},
            "The max_batch_size flag cannot be set directly.\n"
            "Why: tllm's max_batch_size option sets this flag\n"
            "Next: pass --build-option max_batch_size=VALUE",
        ),
        (
            "0.16.0",
            {"kv_cache_type": "sparse"},
            "'sparse' is not a valid value for the kv_cache_type flag.\n"
            "Why: trtllm-build in TensorRT-LLM 0.16.0 accepts continuous, paged, disabled\n"
            "Next: pass --build-option kv_cache_type=VALUE with a valid value",
        ),
        (
            "0.16.0",
            {"max_prompt_embedding_table_size": "many"},
            "'many' is not a valid value for the max_prompt_embedding_table_size flag.\n"
            "Why: trtllm-build in TensorRT-LLM 0.16.0 accepts an integer\n"
            "Next: pass --build-option max_prompt_embedding_table_size=VALUE with a valid value",
        ),
        (
            "0.16.0",
            {"weight_streaming": "enable"},
            "'enable' is not a valid value for the weight_streaming flag.\n"
            "Why: trtllm-build in TensorRT-LLM 0.16.0 accepts true or false\n"
            "Next: pass --build-option weight_streaming=VALUE with a valid value",
        ),
        (
            "0.16.0",
            {"smoothquant": "0.5"},
            "The smoothquant flag requires --quantization int8_sq.\n"
            "Why: the flag has an effect only with SmoothQuant\n"
            "Next: add --quantization int8_sq, or omit smoothquant",
        ),
    ],
)
def test_unsuitable_flag_is_refused(version: str, flags: dict[str, str], message: str) -> None:
    assert refuse(version, flags=flags) == message


def test_flag_that_contradicts_an_option_is_refused() -> None:
    assert refuse("0.16.0", paged_kv_cache=True, flags={"kv_cache_type": "disabled"}) == (
        "The --kv_cache_type flag is set twice.\n"
        "Why: tllm's paged_kv_cache option also sets this flag\n"
        "Next: omit paged_kv_cache or kv_cache_type"
    )


def test_names_of_flags_are_known_in_all_versions() -> None:
    assert is_flag("reduce_fusion")
    assert is_flag("use_layernorm_plugin")
    assert is_flag("calibrate_kv_cache")
    assert not is_flag("made_up")


@st.composite
def _flag_and_value(draw: st.DrawFn) -> tuple[Version, str, str]:
    version = draw(st.sampled_from(VERSIONS))
    program = draw(st.sampled_from(_PROGRAMS))
    flags = [each for each in flags_of(program, version).values() if not is_owned(each.name)]
    flag = draw(st.sampled_from(sorted(flags, key=lambda each: each.name)))
    return version, flag.name.removeprefix("--"), draw(_value_of(flag))


def _value_of(flag: Flag) -> st.SearchStrategy[str]:
    if flag.type == "flag":
        return st.sampled_from(("true", "false"))
    if flag.choices:
        return st.sampled_from([str(each) for each in flag.choices])
    return st.just({"int": "3", "float": "0.5", "str": "text"}[flag.type])


@given(chosen=_flag_and_value())
def test_programs_accept_every_flag_with_a_valid_value(chosen: tuple[Version, str, str]) -> None:
    version, name, value = chosen
    try:
        steps = plan("llama-2-7b", str(version), flags={name: value})
    except BadInput as error:
        # An option of tllm, or a flag that requires another option.
        assert "cannot be set directly" in error.what or " requires " in error.what
        return
    for step in steps:
        check_step(step, version)
