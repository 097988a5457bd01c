"""Compare plans with guides of old versions, and with guides for formats of the converters.

Folders are not compared, because they differ between users.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.build.tensorrt.guides import Guide, check_guide, compare
from tests.build.tensorrt.samples import MODELS

_LLAMA_README = "NVIDIA/TensorRT-LLM@v0.7.1:examples/llama/README.md"
_GPT_README = "NVIDIA/TensorRT-LLM@v0.7.1:examples/gpt/README.md"
_BACKEND = "triton-inference-server/tensorrtllm_backend"
# In the README files of build.py, engines have no in-flight batching.
_WITHOUT_BATCHING = {"paged_kv_cache": False, "context_fmha": True}
_BUILD_PY = {
    "--dtype": "float16",
    "--remove_input_padding": "",
    "--use_gpt_attention_plugin": "float16",
    "--enable_context_fmha": "",
    "--use_gemm_plugin": "float16",
}
_IN_FLIGHT = {
    "--use_inflight_batching": "",
    "--paged_kv_cache": "",
    "--remove_input_padding": "",
}
_FLOAT16: dict[str, str] = {"--dtype": "float16"}

GUIDES = {
    **{
        f"llama-in-flight-{version}": Guide(
            f"{_BACKEND}@v{version}:inflight_batcher_llm/README.md",
            "llama-3.1-8b",
            version,
            {},
            None,
            {
                **_IN_FLIGHT,
                "--dtype": "bfloat16",
                "--use_gpt_attention_plugin": "bfloat16",
                "--use_gemm_plugin": "bfloat16",
            },
            script="/examples/llama/build.py",
        )
        for version in ("0.5.0", "0.6.1", "0.7.1")
    },
    "llama-batch-by-batch": Guide(
        f"{_BACKEND}@v0.7.1:inflight_batcher_llm/README.md, without --use_inflight_batching",
        "llama-3.1-8b",
        "0.7.1",
        {"flags": {"use_inflight_batching": "false"}},
        None,
        {
            "--paged_kv_cache": "",
            "--remove_input_padding": "",
            "--dtype": "bfloat16",
            "--use_gpt_attention_plugin": "bfloat16",
            "--use_gemm_plugin": "bfloat16",
        },
        script="/examples/llama/build.py",
    ),
    "gpt-in-flight": Guide(
        f"{_BACKEND}@v0.7.1:inflight_batcher_llm/README.md; {_GPT_README}, hf_gpt_convert.py",
        "gpt2-medium",
        "0.7.1",
        {"flags": {"use_layernorm_plugin": "float16", "hidden_act": "gelu"}},
        {"--storage-type": "float16", "--tensor-parallelism": "1"},
        {
            **_IN_FLIGHT,
            "--dtype": "float16",
            "--use_gpt_attention_plugin": "float16",
            "--use_gemm_plugin": "float16",
            "--use_layernorm_plugin": "float16",
            "--hidden_act": "gelu",
        },
        script="/examples/gpt/hf_gpt_convert.py",
    ),
    "llama-int8-weights": Guide(
        f"{_LLAMA_README}, INT8 weight-only",
        "llama-2-7b",
        "0.7.1",
        {**_WITHOUT_BATCHING, "quantization": "int8"},
        None,
        {**_BUILD_PY, "--use_weight_only": ""},
        script="/examples/llama/build.py",
        # int8 is the default of build.py.
        plan_differs={"--weight_only_precision": "int8"},
    ),
    "llama-tp2-pp2": Guide(
        f"{_LLAMA_README}, 2-way tensor and 2-way pipeline parallelism",
        "llama-2-7b",
        "0.7.1",
        {**_WITHOUT_BATCHING, "tp": 2, "pp": 2},
        None,
        {**_BUILD_PY, "--world_size": "4", "--tp_size": "2", "--pp_size": "2"},
        script="/examples/llama/build.py",
    ),
    "bloom-smoothquant": Guide(
        "NVIDIA/TensorRT-LLM@v0.8.0:examples/bloom/README.md, SmoothQuant",
        "bloom-7b",
        "0.8.0",
        {
            "dtype": "float16",
            "quantization": "int8_sq",
            "flags": {"smoothquant": "0.5", "per_token": "true", "per_channel": "true"},
        },
        {"--smoothquant": "0.5", "--per_token": "", "--per_channel": ""},
        {},
        script="/examples/bloom/convert_checkpoint.py",
        # The converter's default.
        plan_differs=dict(_FLOAT16),
    ),
    "gpt-smoothquant": Guide(
        "NVIDIA/TensorRT-LLM@v0.9.0:examples/gpt/README.md, SmoothQuant",
        "gpt2-medium",
        "0.9.0",
        {
            "dtype": "float16",
            "quantization": "int8_sq",
            "flags": {"per_token": "true", "per_channel": "true"},
        },
        {**_FLOAT16, "--smoothquant": "0.5", "--per_token": "", "--per_channel": ""},
        {},
        script="/examples/gpt/convert_checkpoint.py",
        plan_differs={"--gpt_variant": "gpt2"},
    ),
    "qwen-smoothquant": Guide(
        "NVIDIA/TensorRT-LLM@v0.9.0:examples/qwen/README.md, SmoothQuant",
        "qwen-7b",
        "0.9.0",
        {"dtype": "float16", "quantization": "int8_sq"},
        {**_FLOAT16, "--smoothquant": "0.5"},
        {},
        script="/examples/qwen/convert_checkpoint.py",
    ),
    "chatglm-smoothquant": Guide(
        "NVIDIA/TensorRT-LLM@v0.11.0:examples/chatglm/README.md, SmoothQuant",
        "chatglm3-6b",
        "0.11.0",
        {"dtype": "float16", "quantization": "int8_sq", "published_name": "THUDM/chatglm3-6b"},
        {**_FLOAT16, "--smoothquant": "0.5"},
        {},
        script="/examples/chatglm/convert_checkpoint.py",
        plan_differs={"--chatglm_version": "chatglm3"},
    ),
    "baichuan-smoothquant": Guide(
        "NVIDIA/TensorRT-LLM@be178810:examples/baichuan/README.md, SmoothQuant",
        "baichuan-13b",
        "0.16.0",
        {
            "dtype": "float16",
            "quantization": "int8_sq",
            "flags": {"smoothquant": "0.8", "per_channel": "true", "per_token": "true"},
        },
        {
            **_FLOAT16,
            "--model_version": "v1_13b",
            "--smoothquant": "0.8",
            "--per_channel": "",
            "--per_token": "",
        },
        {},
        script="/examples/baichuan/convert_checkpoint.py",
    ),
    "qwen-gptq": Guide(
        "NVIDIA/TensorRT-LLM@v0.11.0:examples/qwen/README.md, INT4-GPTQ",
        replace(MODELS["qwen-7b"], quantization="gptq"),
        "0.11.0",
        {"dtype": "float16", "quantization": "int4_gptq", "gemm_plugin": "float16"},
        {
            **_FLOAT16,
            "--use_weight_only": "",
            "--weight_only_precision": "int4_gptq",
            "--per_group": "",
        },
        {"--gemm_plugin": "float16"},
        script="/examples/qwen/convert_checkpoint.py",
    ),
    "llama-gptq": Guide(
        "NVIDIA/TensorRT-LLM@be178810:examples/llama/README.md, GPTQ",
        "llama-2-7b",
        "0.16.0",
        {
            "dtype": "float16",
            "quantization": "int4_gptq",
            "tp": 2,
            "gemm_plugin": "auto",
            "flags": {"quant_ckpt_path": "llama-7b-4bit-gs128.safetensors"},
        },
        {
            **_FLOAT16,
            "--quant_ckpt_path": "llama-7b-4bit-gs128.safetensors",
            "--use_weight_only": "",
            "--weight_only_precision": "int4_gptq",
            "--per_group": "",
            "--tp_size": "2",
        },
        {"--gemm_plugin": "auto"},
    ),
    "gptneox-gptq": Guide(
        "NVIDIA/TensorRT-LLM@v0.8.0:examples/gptneox/README.md, GPTQ",
        "gpt-neox-20b",
        "0.8.0",
        {
            "dtype": "float16",
            "quantization": "int4_gptq",
            "flags": {"ammo_quant_ckpt_path": "gptneox-20b-4bit-gs128.safetensors"},
        },
        {
            **_FLOAT16,
            "--use_weight_only": "",
            "--weight_only_precision": "int4_gptq",
            "--ammo_quant_ckpt_path": "gptneox-20b-4bit-gs128.safetensors",
        },
        {},
        script="/examples/gptneox/convert_checkpoint.py",
    ),
    "llama-fp8-rowwise": Guide(
        "NVIDIA/TensorRT-LLM@be178810:examples/llama/README.md, LLaMA 3.1 in FP8",
        "llama-3.1-8b",
        "0.16.0",
        {
            "dtype": "bfloat16",
            "quantization": "fp8_rowwise",
            "tp": 8,
            "workers": 8,
            "flags": {"load_by_shard": "true"},
        },
        {
            "--dtype": "bfloat16",
            "--use_fp8_rowwise": "",
            "--tp_size": "8",
            "--pp_size": "1",
            "--load_by_shard": "",
            "--workers": "8",
        },
        {"--workers": "8"},
        plan_differs={"--pp_size": None},
    ),
    "gemma-int8-weights": Guide(
        "NVIDIA/TensorRT-LLM@v0.9.0:examples/gemma/README.md, weight only",
        replace(MODELS["gemma-2-9b"], architecture="GemmaForCausalLM"),
        "0.9.0",
        {"dtype": "bfloat16", "quantization": "int8"},
        {"--ckpt-type": "hf", "--use-weight-only-with-precision": "int8", "--dtype": "bfloat16"},
        {},
        script="/examples/gemma/convert_checkpoint.py",
        plan_differs={"--model-dir": "/models/my model", "--output-model-dir": "{work}/.scratch"},
    ),
    "vicuna-medusa-on-0.9": Guide(
        "NVIDIA/TensorRT-LLM@v0.9.0:examples/medusa/README.md",
        "llama-2-7b",
        "0.9.0",
        {
            "dtype": "float16",
            "speculative_decoding_mode": "medusa",
            "speculative_model": "medusa-vicuna-7b-v1.3",
            "gemm_plugin": "float16",
            "max_batch_size": 8,
            "flags": {"fixed_num_medusa_heads": "4"},
        },
        {
            **_FLOAT16,
            "--medusa_model_dir": "medusa-vicuna-7b-v1.3",
            "--fixed_num_medusa_heads": "4",
        },
        {"--gemm_plugin": "float16", "--max_batch_size": "8"},
        script="/examples/medusa/convert_checkpoint.py",
    ),
    "dbrx-ep8": Guide(
        "NVIDIA/TensorRT-LLM@be178810:examples/dbrx/README.md, expert parallelism",
        "dbrx",
        "0.16.0",
        {
            "dtype": "bfloat16",
            "tp": 8,
            "moe_tp": 1,
            "moe_ep": 8,
            "workers": 8,
            "gpt_attention_plugin": "bfloat16",
            "gemm_plugin": "bfloat16",
            "flags": {"moe_plugin": "bfloat16"},
        },
        {
            "--dtype": "bfloat16",
            "--tp_size": "8",
            "--moe_tp_size": "1",
            "--moe_ep_size": "8",
            "--workers": "8",
        },
        {
            "--gpt_attention_plugin": "bfloat16",
            "--gemm_plugin": "bfloat16",
            "--moe_plugin": "bfloat16",
            "--workers": "8",
        },
        script="/examples/dbrx/convert_checkpoint.py",
    ),
    "exaone-int4-weights": Guide(
        "NVIDIA/TensorRT-LLM@be178810:examples/exaone/README.md, INT4 weight-only",
        "exaone-7.8b",
        "0.16.0",
        {"dtype": "float16", "quantization": "int4", "gemm_plugin": "auto"},
        {**_FLOAT16, "--use_weight_only": "", "--weight_only_precision": "int4"},
        {"--gemm_plugin": "auto"},
    ),
}


@pytest.mark.parametrize("guide", GUIDES.values(), ids=GUIDES)
def test_plan_matches_the_guide(guide: Guide) -> None:
    assert compare(guide) == guide.plan_differs


@pytest.mark.parametrize("guide", GUIDES.values(), ids=GUIDES)
def test_programs_of_the_guides_version_accept_the_plan(guide: Guide) -> None:
    check_guide(guide)
