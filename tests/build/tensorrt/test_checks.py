"""Options that are refused before the build."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.build.tensorrt.samples import MODELS, options_in, plan
from tests.samples import configs
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.shape import parse_shape


def refuse(version: str, model: str = "llama-2-7b", **options: Any) -> str:
    with pytest.raises(BadInput) as raised:
        plan(model, version, **options)
    return str(raised.value)


def test_heads_that_tp_does_not_divide_are_refused() -> None:
    assert refuse("0.16.0", tp=3) == (
        "The model cannot run with --tp 3.\n"
        "Why: the number of attention heads, 32, is not divisible by 3\n"
        "Next: set --tp to one of 1, 2, 4, 8, 16"
    )


@pytest.mark.parametrize("version", ["0.5.0", "0.11.0"])
def test_rope_scaling_of_a_later_version_is_refused(version: str) -> None:
    scaled = parse_shape(configs.LLAMA_3_1_8B | {"rope_scaling": {"rope_type": "llama3"}})
    with pytest.raises(BadInput) as raised:
        plan(scaled, version)
    assert str(raised.value) == (
        f"TensorRT-LLM {version} does not convert this model.\n"
        "Why: version 0.12 added support for the RoPE scaling of Llama 3.1 and later\n"
        "Next: use TensorRT-LLM 0.12 or later"
    )
    assert len(plan(scaled, "0.12.0")) == 2


@pytest.mark.parametrize("version", ["0.5.0", "0.9.0", "0.19.0"])
def test_pipeline_stages_of_different_sizes_are_refused(version: str) -> None:
    assert refuse(version, pp=3) == (
        f"TensorRT-LLM {version} cannot build an engine with --pp 3.\n"
        "Why: in this version, each pipeline stage must have the same number of layers, but the "
        "model has 32 layers\n"
        "Next: set --pp to one of 1, 2, 4, 8, 16, or use TensorRT-LLM 0.20 or later"
    )


def test_later_versions_build_pipeline_stages_of_different_sizes() -> None:
    _, step = plan("llama-2-7b", "1.0.0", pp=3)
    assert len([each for each in step.outputs if each.endswith(".engine")]) == 3


def test_expert_parallelism_that_does_not_match_tp_is_refused() -> None:
    message = refuse("0.16.0", "mixtral-8x22b", tp=8, moe_tp=2, moe_ep=2)
    assert message.startswith("The model cannot run with --moe-tp 2 --moe-ep 2.")


def test_pipeline_parallelism_without_converter_support_is_refused() -> None:
    assert refuse("0.16.0", "gemma-2-9b", pp=2) == (
        "Gemma2ForCausalLM does not support --pp 2.\n"
        "Why: the architecture's converter does not support pipeline parallelism\n"
        "Next: use --tp 2 instead"
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"max_batch_size": 0}, "--max-batch-size cannot be 0"),
        ({"workers": 0}, "workers cannot be 0"),
        (
            {"max_input_len": 4096, "max_seq_len": 2048},
            "--max-input-len 4096 exceeds --max-seq-len 2048",
        ),
        (
            {"opt_num_tokens": 64, "max_num_tokens": 32},
            "opt_num_tokens 64 exceeds --max-num-tokens 32",
        ),
        (
            {"max_beam_width": 8, "max_num_tokens": 4},
            "--max-beam-width 8 exceeds --max-num-tokens 4",
        ),
        (
            {"multiple_profiles": True, "opt_num_tokens": 8},
            "multiple_profiles and opt_num_tokens cannot be combined",
        ),
        (
            {"remove_input_padding": False, "max_num_tokens": 8},
            "--max-num-tokens requires remove_input_padding",
        ),
        ({"max_lora_rank": 8}, "max_lora_rank requires lora_target_modules or lora_dir"),
        ({"max_draft_len": 8}, "max_draft_len requires speculative_decoding_mode"),
        ({"speculative_model": "m"}, "speculative_model requires speculative_decoding_mode"),
        (
            {"speculative_decoding_mode": "draft_tokens_external", "max_draft_len": 5,
             "gather_context_logits": True},
            "gather_context_logits and speculative decoding cannot be combined",
        ),
        (
            {"speculative_decoding_mode": "medusa"},
            "speculative_decoding_mode medusa requires speculative_model",
        ),
        (
            {"speculative_decoding_mode": "lookahead_decoding", "speculative_model": "heads"},
            "speculative_decoding_mode lookahead_decoding does not support speculative_model",
        ),
        (
            {"speculative_decoding_mode": "lookahead_decoding"},
            "speculative_decoding_mode lookahead_decoding requires max_draft_len",
        ),
        (
            {"speculative_decoding_mode": "explicit_draft_tokens", "speculative_model": "heads",
             "max_draft_len": 5},
            "speculative_decoding_mode explicit_draft_tokens does not support max_draft_len",
        ),
        (
            {"speculative_decoding_mode": "eagle", "speculative_model": "h", "max_draft_len": 257},
            "max_draft_len 257 is too high for EAGLE",
        ),
        (
            {"speculative_decoding_mode": "eagle", "speculative_model": "h", "max_batch_size": 513},
            "--max-batch-size 513 is too high for EAGLE",
        ),
        ({"use_paged_context_fmha": True, "paged_kv_cache": False},
         "use_paged_context_fmha requires paged_kv_cache"),
        ({"use_paged_context_fmha": True, "context_fmha": False},
         "use_paged_context_fmha requires context_fmha"),
        ({"use_paged_context_fmha": True, "kv_cache_dtype": "int8"},
         "use_paged_context_fmha does not support an int8 KV cache"),
        ({"use_paged_context_fmha": True, "kv_cache_dtype": "fp8"},
         "use_paged_context_fmha does not support an fp8 KV cache in this build"),
    ],
)  # fmt: skip
def test_contradictory_options_are_refused(options: dict[str, Any], what: str) -> None:
    assert refuse("0.16.0", **options).startswith(f"{what}.\nWhy: ")


@pytest.mark.parametrize(
    ("mode", "why", "next_step"),
    [
        (
            "draft_tokens_external",
            "the draft model requires a separate engine",
            "omit speculative_model, and import the draft model under another name",
        ),
        (
            "lookahead_decoding",
            "this mode does not use a draft model",
            "omit speculative_model",
        ),
    ],
)
def test_a_draft_model_in_the_same_build_is_refused(mode: str, why: str, next_step: str) -> None:
    message = refuse("0.16.0", speculative_decoding_mode=mode, speculative_model="m")
    assert message == (
        f"speculative_decoding_mode {mode} does not support speculative_model.\n"
        f"Why: {why}\n"
        f"Next: {next_step}"
    )


def test_draft_heads_for_an_unsupported_architecture_are_refused() -> None:
    message = refuse(
        "0.16.0", "falcon-7b", speculative_decoding_mode="medusa", speculative_model="heads"
    )
    assert message == (
        "speculative_decoding_mode medusa does not support FalconForCausalLM.\n"
        "Why: the converter for this mode supports only LlamaForCausalLM\n"
        "Next: pass --build-option speculative_decoding_mode=draft_tokens_external"
    )


def test_defaults_of_a_version_are_checked_like_options() -> None:
    plan("llama-2-7b", "0.16.0", kv_cache_dtype="int8")
    assert refuse("1.2.0", kv_cache_dtype="int8") == (
        "use_paged_context_fmha does not support an int8 KV cache.\n"
        "Why: trtllm-build rejects the combination\n"
        "Next: add --build-option use_paged_context_fmha=false"
    )
    plan("llama-2-7b", "1.2.0", kv_cache_dtype="int8", use_paged_context_fmha=False)


@pytest.mark.parametrize(
    ("version", "quantization"),
    [("0.16.0", "fp8"), ("1.2.1", "fp8"), ("1.2.1", "nvfp4"), ("0.17.0", "w4a8_awq")],
)
def test_fp8_cache_works_with_chunked_context(version: str, quantization: str) -> None:
    options = {"kv_cache_dtype": "fp8", "quantization": quantization}
    _, step = plan("llama-2-7b", version, **options, use_paged_context_fmha=True)
    assert options_in(step.command)["--use_paged_context_fmha"] == "enable"


def test_fp8_cache_does_not_work_with_chunked_context_and_16_bit_weights() -> None:
    assert refuse("1.2.1", kv_cache_dtype="fp8") == (
        "use_paged_context_fmha does not support an fp8 KV cache in this build.\n"
        "Why: trtllm-build supports the combination only with fp8 weights in TensorRT-LLM 0.10 or "
        "later, and with nvfp4 or w4a8_awq weights in 0.17 or later\n"
        "Next: add --build-option use_paged_context_fmha=false"
    )


@pytest.mark.parametrize(
    ("model", "version", "quantization", "message"),
    [
        (
            "llama-2-7b",
            "0.16.0",
            "nvfp4",
            "TensorRT-LLM 0.16.0 does not support --quantization nvfp4 for LlamaForCausalLM.\n"
            "Why: the supported values are int8, int4, fp8, int4_awq, w4a8_awq, int8_sq, "
            "int4_gptq, fp8_rowwise, none; TensorRT-LLM 0.17.0 added support for nvfp4\n"
            "Next: pass a supported value, or use TensorRT-LLM 0.17.0 or later",
        ),
        (
            "falcon-7b",
            "1.2.0",
            "nvfp4",
            "TensorRT-LLM 1.2.0 does not support --quantization nvfp4 for FalconForCausalLM.\n"
            "Why: the supported values are int8, int4, fp8, int4_awq, w4a8_awq, none\n"
            "Next: pass a supported value",
        ),
    ],
)
def test_unsupported_format_of_a_family_is_refused(
    model: str, version: str, quantization: str, message: str
) -> None:
    assert refuse(version, model, quantization=quantization) == message


def test_quantized_checkpoint_is_not_quantized_again() -> None:
    shape = replace(MODELS["llama-2-7b"], quantization="awq")
    with pytest.raises(BadInput) as raised:
        plan(shape, "0.16.0", quantization="fp8")
    assert str(raised.value) == (
        "The checkpoint is already quantized (awq).\n"
        "Why: a quantized checkpoint cannot be quantized again to fp8\n"
        "Next: import the model's 16-bit checkpoint"
    )


def test_quantized_checkpoint_is_accepted_if_the_converter_supports_it() -> None:
    shape = replace(MODELS["llama-2-7b"], quantization="awq")
    plan(shape, "0.16.0")
    with pytest.raises(BadInput) as raised:
        plan(shape, "0.15.0")
    assert raised.value.why == (
        "TensorRT-LLM 0.15.0 does not convert LlamaForCausalLM checkpoints with this quantization"
    )


def test_cache_that_no_program_supports_with_the_weights_is_refused() -> None:
    assert refuse("0.11.0", "bloom-7b", quantization="int8_sq", kv_cache_dtype="fp8") == (
        "TensorRT-LLM 0.11.0 does not support --kv-cache-dtype fp8 for BloomForCausalLM with "
        "--quantization int8_sq.\n"
        "Why: neither the converter nor quantize.py supports this KV cache data type for these "
        "weights\n"
        "Next: omit --kv-cache-dtype"
    )


def test_rowwise_fp8_weights_and_an_fp8_cache_are_converted() -> None:
    options = {"quantization": "fp8_rowwise", "kv_cache_dtype": "fp8"}
    step, _ = plan("llama-2-7b", "0.16.0", **options)
    assert {"--use_fp8_rowwise", "--fp8_kv_cache"} <= {*step.command}


def test_smoothquant_of_the_converter_takes_a_data_set() -> None:
    options = {"quantization": "int8_sq", "calib_dataset": "mine"}
    step, _ = plan("bloom-7b", "0.11.0", **options)
    assert options_in(step.command)["--calib_dataset"] == "mine"


def test_gptq_checkpoint_of_qwen_needs_the_quantization() -> None:
    shape = replace(MODELS["qwen-7b"], quantization="gptq")
    with pytest.raises(BadInput) as raised:
        plan(shape, "0.11.0")
    assert raised.value.next_step == "add --quantization int4_gptq"


def test_gptq_without_the_quantized_weights_is_refused() -> None:
    assert refuse("0.16.0", quantization="int4_gptq") == (
        "--quantization int4_gptq requires a file with the quantized weights.\n"
        "Why: the converter does not quantize the weights, but reads quantized weights from an "
        "AutoGPTQ file\n"
        "Next: add --build-option quant_ckpt_path=FILE (ammo_quant_ckpt_path before 0.10, "
        "modelopt_quant_ckpt_path in 0.10)"
    )


@pytest.mark.parametrize(
    ("gpu", "version", "options", "message"),
    [
        (
            "a100-80gb",
            "1.0.0",
            {"quantization": "fp8"},
            "The a100-80gb GPU does not support fp8 weights.\n"
            "Why: the format requires compute capability 8.9, but the GPU has 8.0\n"
            "Next: pass --quantization int8, int4 or int4_awq",
        ),
        (
            "h200",
            "1.0.0",
            {"quantization": "nvfp4"},
            "The h200 GPU does not support nvfp4 weights.\n"
            "Why: the format requires compute capability 10.0, but the GPU has 9.0\n"
            "Next: pass --quantization int8, int4 or int4_awq",
        ),
        (
            "a100-80gb",
            "1.0.0",
            {"kv_cache_dtype": "fp8"},
            "The a100-80gb GPU does not support fp8 for the KV cache.\n"
            "Why: the format requires compute capability 8.9, but the GPU has 8.0\n"
            "Next: pass --kv-cache-dtype int8",
        ),
        (
            "t4",
            "0.9.0",
            {"dtype": "bfloat16"},
            "The t4 GPU does not support bfloat16.\n"
            "Why: the format requires compute capability 8.0, but the GPU has 7.5\n"
            "Next: pass --dtype float16",
        ),
        (
            "l4",
            "0.14.0",
            {"quantization": "fp8_rowwise"},
            "TensorRT-LLM 0.14.0 does not support --quantization fp8_rowwise on l4.\n"
            "Why: in this version, the fp8_rowwise kernels run only on Hopper GPUs\n"
            "Next: use TensorRT-LLM 0.15 or later",
        ),
        (
            "a100-80gb",
            "0.14.0",
            {"quantization": "fp8_rowwise"},
            "The a100-80gb GPU does not support fp8_rowwise weights.\n"
            "Why: the format requires compute capability 8.9, but the GPU has 8.0\n"
            "Next: pass --quantization int8, int4 or int4_awq",
        ),
        (
            "v100-32gb",
            "0.16.0",
            {},
            "TensorRT-LLM 0.16.0 does not run on v100-32gb.\n"
            "Why: version 0.16 removed support for the V100\n"
            "Next: use TensorRT-LLM 0.15 or earlier",
        ),
        (
            "b200",
            "0.16.0",
            {},
            "TensorRT-LLM 0.16.0 does not run on b200.\n"
            "Why: version 0.17 added support for Blackwell GPUs\n"
            "Next: use TensorRT-LLM 0.17 or later",
        ),
        (
            "b200",
            "1.2.1",
            {"quantization": "int4_awq"},
            "TensorRT-LLM 1.2.1 does not support --quantization int4_awq on b200.\n"
            "Why: on Blackwell GPUs for data centers, trtllm-build rejects INT8 and INT4 formats "
            "and FP8 with per-channel scales\n"
            "Next: pass --quantization fp8 or nvfp4, or omit --quantization",
        ),
        (
            "b200",
            "1.2.1",
            {"quantization": "w4a8_awq"},
            "TensorRT-LLM 1.2.1 does not support --quantization w4a8_awq on b200.\n"
            "Why: on Blackwell GPUs for data centers, trtllm-build rejects INT8 and INT4 formats "
            "and FP8 with per-channel scales\n"
            "Next: pass --quantization fp8 or nvfp4, or omit --quantization",
        ),
        (
            "b200",
            "1.2.1",
            {"kv_cache_dtype": "int8", "use_paged_context_fmha": False},
            "TensorRT-LLM 1.2.1 does not support --kv-cache-dtype int8 on b200.\n"
            "Why: on Blackwell GPUs for data centers, trtllm-build rejects INT8 and INT4 formats "
            "and FP8 with per-channel scales\n"
            "Next: pass --kv-cache-dtype fp8, or omit --kv-cache-dtype",
        ),
    ],
)
def test_options_that_the_gpu_does_not_support_are_refused(
    gpu: str, version: str, options: dict[str, Any], message: str
) -> None:
    assert refuse(version, gpu=gpu, **options) == message


@pytest.mark.parametrize(
    ("gpu", "version", "quantization"),
    [("l4", "0.11.0", "fp8"), ("h200", "1.0.0", "fp8"), ("b200", "0.17.0", "nvfp4"),
     ("b200", "1.2.1", "fp8"), ("rtx-pro-6000", "1.2.1", "int8"),
     ("v100-32gb", "0.9.0", "int8"), ("t4", "1.2.0", "int4_awq")],
)  # fmt: skip
def test_options_that_the_gpu_supports_are_planned(
    gpu: str, version: str, quantization: str
) -> None:
    assert len(plan("llama-2-7b", version, gpu, quantization=quantization)) == 2
