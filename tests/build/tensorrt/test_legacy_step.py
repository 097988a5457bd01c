"""Plans of engines with build.py, before trtllm-build."""

from __future__ import annotations

from typing import Any

import pytest

from tests.build.tensorrt.samples import check_step, options_in, plan
from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.errors import BadInput

_SCRATCH = "{work}/.scratch"


def test_llama_is_built_in_one_step() -> None:
    assert plan("llama-2-7b", "0.7.1", tp=2, max_batch_size=8) == (
        BuildStep(
            "Build the engine for 2 GPUs",
            (
                "/venv/bin/python", "/examples/llama/build.py",
                "--model_dir", "/models/my model", "--dtype", "float16",
                "--use_gpt_attention_plugin", "float16", "--use_inflight_batching",
                "--paged_kv_cache", "--remove_input_padding", "--use_gemm_plugin", "float16",
                "--max_batch_size", "8", "--world_size", "2", "--tp_size", "2",
                "--timing_cache", f"{_SCRATCH}/model.cache", "--output_dir", "{work}",
            ),
            inputs=("/models/my model",),
            outputs=(
                "{work}/config.json",
                "{work}/llama_float16_tp2_rank0.engine",
                "{work}/llama_float16_tp2_rank1.engine",
            ),
            estimated_bytes=2 * 6_738_415_616,
        ),
    )  # fmt: skip


def test_gpt_is_converted_first() -> None:
    convert, build = plan("gpt2-medium", "0.7.1", tp=4)
    assert options_in(convert.command) == {
        "--in-file": "/models/my model",
        "--out-dir": _SCRATCH,
        "--tensor-parallelism": "4",
        "--storage-type": "float16",
    }
    assert convert.outputs == (f"{_SCRATCH}/4-gpu/config.ini",)
    assert build.inputs == (f"{_SCRATCH}/4-gpu",)
    arguments = options_in(build.command)
    assert arguments["--model_dir"] == f"{_SCRATCH}/4-gpu"
    assert arguments["--world_size"] == "4"
    assert "--tp_size" not in arguments


def test_gpt_has_build_py_until_0_8() -> None:
    scripts = [
        [step.command[1] for step in plan("gpt2-medium", version)] for version in ("0.8.0", "0.9.0")
    ]
    assert scripts == [
        ["/examples/gpt/hf_gpt_convert.py", "/examples/gpt/build.py"],
        ["/examples/gpt/convert_checkpoint.py", "--checkpoint_dir"],
    ]


def test_pipeline_stages_are_in_the_names_of_the_engines() -> None:
    (step,) = plan("llama-2-7b", "0.5.0", tp=2, pp=2)
    assert step.outputs[-1] == "{work}/llama_float16_tp2_pp2_rank3.engine"


def test_lora_adapter_is_passed_to_build_py() -> None:
    (step,) = plan("llama-2-7b", "0.7.1", lora_dir=("adapter",), context_fmha=True)
    arguments = options_in(step.command)
    assert arguments["--use_lora_plugin"] == "float16"
    assert arguments["--hf_lora_dir"] == "adapter"
    assert "--enable_context_fmha" in arguments


def test_length_is_split_into_input_and_output() -> None:
    (step,) = plan("llama-2-7b", "0.7.1", max_input_len=512, max_seq_len=562)
    arguments = options_in(step.command)
    assert (arguments["--max_input_len"], arguments["--max_output_len"]) == ("512", "50")


def test_versions_with_a_flag_include_those_of_trtllm_build() -> None:
    with pytest.raises(BadInput) as raised:
        plan("llama-2-7b", "0.5.0", flags={"multi_block_mode": "true"})
    assert raised.value.why == "the flag is available only in TensorRT-LLM 0.6.1 to 0.11.0"


@pytest.mark.parametrize("version", ["0.5.0", "0.6.1", "0.7.0", "0.7.1"])
@pytest.mark.parametrize("model", ["llama-2-7b", "gpt2-medium"])
def test_programs_accept_the_plan(model: str, version: str) -> None:
    options: dict[str, Any] = {"quantization": "int8", "max_batch_size": 8, "max_seq_len": 4096}
    for step in plan(model, version, tp=2, max_num_tokens=4096, **options):
        check_step(step, version)


@pytest.mark.parametrize(
    ("model", "version", "options", "message"),
    [
        (
            "falcon-7b",
            "0.7.1",
            {},
            "tllm cannot plan FalconForCausalLM engines for TensorRT-LLM 0.7.1.\n"
            "Why: for this version, tllm supports only LlamaForCausalLM, "
            "MistralForCausalLM, MixtralForCausalLM, GPT2LMHeadModel, GPTBigCodeForCausalLM\n"
            "Next: use TensorRT-LLM 0.9 or later",
        ),
        (
            "llama-2-7b",
            "0.7.1",
            {"quantization": "fp8"},
            "tllm cannot plan TensorRT-LLM 0.7.1 engines with --quantization fp8.\n"
            "Why: for versions that use build.py, tllm supports only the weight-only formats int8 "
            "and int4\n"
            "Next: pass --quantization int8 or int4, or use TensorRT-LLM 0.9 or later",
        ),
        (
            "llama-2-7b",
            "0.7.1",
            {"kv_cache_dtype": "int8"},
            "--kv-cache-dtype int8 is not supported with TensorRT-LLM 0.7.1.\n"
            "Why: a quantized KV cache requires calibration, which tllm does not support for "
            "versions that use build.py\n"
            "Next: omit --kv-cache-dtype, or use TensorRT-LLM 0.9 or later",
        ),
        (
            "llama-2-7b",
            "0.7.1",
            {"max_num_tokens": 4096, "context_fmha": False},
            "--max-num-tokens requires context_fmha.\n"
            "Why: build.py in TensorRT-LLM 0.7.1 supports the limit only with fused attention\n"
            "Next: omit --max-num-tokens or --build-option context_fmha=false",
        ),
        (
            "llama-2-7b",
            "0.7.1",
            {"multiple_profiles": True},
            "TensorRT-LLM 0.7.1 does not support multiple_profiles for this model.\n"
            "Why: in this version, build.py does not have an equivalent flag\n"
            "Next: omit multiple_profiles, or use TensorRT-LLM 0.9 or later",
        ),
        (
            "gpt2-medium",
            "0.7.1",
            {"pp": 2},
            "TensorRT-LLM 0.7.1 does not support --pp.\n"
            "Why: in this version, build.py for gpt does not have the --pp_size flag\n"
            "Next: omit --pp",
        ),
        (
            "llama-2-7b",
            "0.6.1",
            {"lora_dir": ("adapter",)},
            "TensorRT-LLM 0.6.1 does not support lora_dir.\n"
            "Why: in this version, build.py for llama does not have the --use_lora_plugin flag\n"
            "Next: omit lora_dir, or use TensorRT-LLM 0.7.0 or later",
        ),
    ],
)
def test_unsupported_request_is_refused(
    model: str, version: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput) as raised:
        plan(model, version, **options)
    assert str(raised.value) == message
