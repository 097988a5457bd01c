"""Compare plans with the commands of guides that users follow, option by option.

Each guide names its source. Folders are not compared, because they differ between users. Neither is
`--output_timing_cache` of the plan, which trtllm-build writes to the working directory by default.
"""

from __future__ import annotations

import pytest

from tests.build.tensorrt.guides import Guide, check_guide, compare

_IN_FLIGHT = {
    "--gpt_attention_plugin": "float16",
    "--remove_input_padding": "enable",
    "--paged_kv_cache": "enable",
    "--gemm_plugin": "float16",
}
_IN_FLIGHT_OPTIONS = {
    "dtype": "float16",
    "gpt_attention_plugin": "float16",
    "remove_input_padding": True,
    "paged_kv_cache": True,
    "gemm_plugin": "float16",
}
# Without the flag, the converter looks for the variant in the name of the checkpoint's folder.
_VARIANT: dict[str, str | None] = {"--gpt_variant": "gpt2"}
_LORA_OPTIONS = {
    "dtype": "float16",
    "max_batch_size": 8,
    "max_seq_len": 562,
    "lora_target_modules": ("attn_q", "attn_k", "attn_v"),
    "max_lora_rank": 8,
}
_ADAPTERS = ("luotuo-lora-7b-0.1/", "Japanese-Alpaca-LoRA-7b-v0/")

GUIDES = {
    "gpt2-medium-tp4": Guide(
        "triton-inference-server/tensorrtllm_backend@v0.11.0:README.md",
        "gpt2-medium",
        "0.11.0",
        {**_IN_FLIGHT_OPTIONS, "tp": 4},
        {"--dtype": "float16", "--tp_size": "4"},
        _IN_FLIGHT,
        script="/examples/gpt/convert_checkpoint.py",
        plan_differs=_VARIANT,
    ),
    # The README of the main branch at the time of 0.11 used --kv_cache_type, which trtllm-build has
    # only since 0.13: the plan uses the equivalent flag of 0.11.
    "gpt2-medium-tp4-ahead-of-its-version": Guide(
        "triton-inference-server/tensorrtllm_backend@9fe6255:README.md",
        "gpt2-medium",
        "0.11.0",
        {**_IN_FLIGHT_OPTIONS, "tp": 4},
        {"--dtype": "float16", "--tp_size": "4"},
        {
            "--gpt_attention_plugin": "float16",
            "--remove_input_padding": "enable",
            "--kv_cache_type": "paged",
            "--gemm_plugin": "float16",
        },
        script="/examples/gpt/convert_checkpoint.py",
        plan_differs={**_VARIANT, "--kv_cache_type": None, "--paged_kv_cache": "enable"},
    ),
    "gpt2-medium-tp4-on-1.0": Guide(
        "triton-inference-server/tensorrtllm_backend@v1.0.0:README.md",
        "gpt2-medium",
        "1.0.0",
        {**_IN_FLIGHT_OPTIONS, "tp": 4},
        {"--dtype": "float16", "--tp_size": "4"},
        {
            "--gpt_attention_plugin": "float16",
            "--remove_input_padding": "enable",
            "--kv_cache_type": "paged",
            "--gemm_plugin": "float16",
        },
        script="/examples/models/core/gpt/convert_checkpoint.py",
        plan_differs=_VARIANT,
    ),
    "llama-2-7b": Guide(
        "triton-inference-server/tensorrtllm_backend@v0.9.0:docs/llama.md",
        "llama-2-7b",
        "0.9.0",
        {**_IN_FLIGHT_OPTIONS, "context_fmha": True, "max_batch_size": 64},
        {"--dtype": "float16"},
        {**_IN_FLIGHT, "--context_fmha": "enable", "--max_batch_size": "64"},
    ),
    # The same page, with the tensor parallelism of TensorRT-LLM's README.
    "llama-2-7b-tp4": Guide(
        "docs/llama.md as above; NVIDIA/TensorRT-LLM@v0.9.0:examples/llama/README.md, --tp_size",
        "llama-2-7b",
        "0.9.0",
        {**_IN_FLIGHT_OPTIONS, "context_fmha": True, "max_batch_size": 64, "tp": 4},
        {"--dtype": "float16", "--tp_size": "4"},
        {**_IN_FLIGHT, "--context_fmha": "enable", "--max_batch_size": "64"},
    ),
    "llama-2-70b-tp4-pp2": Guide(
        "NVIDIA/TensorRT-LLM@v0.9.0:examples/llama/README.md, 70B, 4-way TP and 2-way PP",
        "llama-2-70b",
        "0.9.0",
        {"dtype": "float16", "tp": 4, "pp": 2, "gemm_plugin": "float16"},
        {"--dtype": "float16", "--tp_size": "4", "--pp_size": "2"},
        {"--gemm_plugin": "float16"},
    ),
    "mixtral-8x22b-tp8-moe": Guide(
        "NVIDIA/TensorRT-LLM@v0.11.0:examples/mixtral/README.md",
        "mixtral-8x22b",
        "0.11.0",
        {"dtype": "float16", "tp": 8, "moe_tp": 2, "moe_ep": 4, "gemm_plugin": "float16"},
        {"--dtype": "float16", "--tp_size": "8", "--moe_tp_size": "2", "--moe_ep_size": "4"},
        {"--gemm_plugin": "float16"},
    ),
    "llama-7b-lora": Guide(
        "triton-inference-server/tensorrtllm_backend@v0.16.0:docs/lora.md",
        "llama-2-7b",
        "0.16.0",
        {**_IN_FLIGHT_OPTIONS, **_LORA_OPTIONS, "use_paged_context_fmha": True},
        {"--dtype": "float16"},
        {
            "--gemm_plugin": "float16",
            "--max_batch_size": "8",
            "--max_seq_len": "562",
            "--gpt_attention_plugin": "float16",
            "--kv_cache_type": "paged",
            "--remove_input_padding": "enable",
            "--use_paged_context_fmha": "enable",
            "--lora_plugin": "float16",
            "--lora_target_modules": "attn_q attn_k attn_v",
            "--max_lora_rank": "8",
        },
    ),
    # Input and output were limited separately: 562 tokens minus 512 of input.
    "llama-7b-lora-dirs-on-0.9": Guide(
        "NVIDIA/TensorRT-LLM@v0.9.0:examples/llama/README.md, several LoRA checkpoints",
        "llama-2-7b",
        "0.9.0",
        {**_LORA_OPTIONS, "gemm_plugin": "float16", "max_input_len": 512, "lora_dir": _ADAPTERS},
        {"--dtype": "float16"},
        {
            "--gemm_plugin": "float16",
            "--lora_plugin": "float16",
            "--max_batch_size": "8",
            "--max_input_len": "512",
            "--max_output_len": "50",
            "--lora_dir": " ".join(_ADAPTERS),
            "--max_lora_rank": "8",
            "--lora_target_modules": "attn_q attn_k attn_v",
        },
    ),
    # --lora_plugin auto uses the dtype of the model, which is explicit here.
    "llama-7b-lora-dirs-on-0.11": Guide(
        "NVIDIA/TensorRT-LLM@v0.11.0:examples/llama/README.md, several LoRA checkpoints",
        "llama-2-7b",
        "0.11.0",
        {**_LORA_OPTIONS, "gemm_plugin": "auto", "max_input_len": 512, "lora_dir": _ADAPTERS},
        {"--dtype": "float16"},
        {
            "--gemm_plugin": "auto",
            "--lora_plugin": "auto",
            "--max_batch_size": "8",
            "--max_input_len": "512",
            "--max_seq_len": "562",
            "--lora_dir": " ".join(_ADAPTERS),
            "--max_lora_rank": "8",
            "--lora_target_modules": "attn_q attn_k attn_v",
        },
        plan_differs={"--lora_plugin": "float16"},
    ),
    # The guide calibrates 70B for two GPUs; this is the same for 8B on one.
    "llama-3.1-8b-fp8": Guide(
        "NVIDIA/TensorRT-LLM@076efc2b:examples/models/core/llama/README.md, FP8",
        "llama-3.1-8b",
        "1.0.0",
        {
            "dtype": "float16",
            "quantization": "fp8",
            "kv_cache_dtype": "fp8",
            "calib_size": 512,
            "gemm_plugin": "auto",
            "workers": 2,
        },
        {
            "--dtype": "float16",
            "--qformat": "fp8",
            "--kv_cache_dtype": "fp8",
            "--calib_size": "512",
        },
        {"--gemm_plugin": "auto", "--workers": "2"},
        script="/examples/quantization/quantize.py",
    ),
    "llama-2-70b-fp8-on-0.9": Guide(
        "NVIDIA/TensorRT-LLM@v0.9.0:examples/llama/README.md, FP8",
        "llama-2-70b",
        "0.9.0",
        {
            "dtype": "float16",
            "quantization": "fp8",
            "kv_cache_dtype": "fp8",
            "calib_size": 512,
            "gemm_plugin": "float16",
            "tp": 2,
            "workers": 2,
        },
        {
            "--dtype": "float16",
            "--qformat": "fp8",
            "--kv_cache_dtype": "fp8",
            "--calib_size": "512",
            "--tp_size": "2",
        },
        {"--gemm_plugin": "float16", "--strongly_typed": "", "--workers": "2"},
        script="/examples/quantization/quantize.py",
    ),
    "llama-7b-int8-weights-and-cache": Guide(
        "NVIDIA/TensorRT-LLM@v0.16.0:examples/llama/README.md, INT8 weight-only and KV cache",
        "llama-2-7b",
        "0.16.0",
        {
            "dtype": "float16",
            "quantization": "int8",
            "kv_cache_dtype": "int8",
            "gemm_plugin": "auto",
        },
        {
            "--dtype": "float16",
            "--int8_kv_cache": "",
            "--use_weight_only": "",
            "--weight_only_precision": "int8",
        },
        {"--gemm_plugin": "auto"},
    ),
    "vicuna-medusa": Guide(
        "NVIDIA/TensorRT-LLM@v0.16.0:examples/medusa/README.md",
        "llama-2-7b",
        "0.16.0",
        {
            "dtype": "float16",
            "speculative_decoding_mode": "medusa",
            "speculative_model": "medusa-vicuna-7b-v1.3",
            "gemm_plugin": "float16",
            "max_batch_size": 4,
            "flags": {"num_medusa_heads": "4"},
        },
        {
            "--medusa_model_dir": "medusa-vicuna-7b-v1.3",
            "--dtype": "float16",
            "--num_medusa_heads": "4",
        },
        {
            "--gemm_plugin": "float16",
            "--speculative_decoding_mode": "medusa",
            "--max_batch_size": "4",
        },
        script="/examples/medusa/convert_checkpoint.py",
    ),
    "vicuna-eagle": Guide(
        "NVIDIA/TensorRT-LLM@v0.16.0:examples/eagle/README.md",
        "llama-2-7b",
        "0.16.0",
        {
            "dtype": "float16",
            "speculative_decoding_mode": "eagle",
            "speculative_model": "EAGLE-Vicuna-7B-v1.3",
            "max_draft_len": 63,
            "use_paged_context_fmha": True,
            "gemm_plugin": "float16",
            "max_batch_size": 4,
            "flags": {"num_eagle_layers": "4", "max_non_leaves_per_layer": "10"},
        },
        {
            "--eagle_model_dir": "EAGLE-Vicuna-7B-v1.3",
            "--dtype": "float16",
            "--max_draft_len": "63",
            "--num_eagle_layers": "4",
            "--max_non_leaves_per_layer": "10",
        },
        {
            "--gemm_plugin": "float16",
            "--use_paged_context_fmha": "enable",
            "--speculative_decoding_mode": "eagle",
            "--max_batch_size": "4",
        },
        script="/examples/eagle/convert_checkpoint.py",
    ),
    "vicuna-redrafter": Guide(
        "NVIDIA/TensorRT-LLM@v0.16.0:examples/redrafter/README.md",
        "llama-2-7b",
        "0.16.0",
        {
            "dtype": "float16",
            "speculative_decoding_mode": "explicit_draft_tokens",
            "speculative_model": "vicuna-7b-drafter",
            "gemm_plugin": "float16",
            "max_batch_size": 4,
            "flags": {"redrafter_num_beams": "4", "redrafter_draft_len_per_beam": "5"},
        },
        {
            "--drafter_model_dir": "vicuna-7b-drafter",
            "--dtype": "float16",
            "--redrafter_num_beams": "4",
            "--redrafter_draft_len_per_beam": "5",
        },
        {
            "--gemm_plugin": "float16",
            "--speculative_decoding_mode": "explicit_draft_tokens",
            "--max_batch_size": "4",
        },
        script="/examples/redrafter/convert_checkpoint.py",
    ),
    "llama-lookahead": Guide(
        "NVIDIA/TensorRT-LLM@v0.16.0:examples/lookahead/README.md",
        "llama-2-7b",
        "0.16.0",
        {
            "dtype": "float16",
            "speculative_decoding_mode": "lookahead_decoding",
            "max_draft_len": 83,
            "gpt_attention_plugin": "float16",
            "gemm_plugin": "float16",
            "max_batch_size": 32,
            "max_input_len": 1024,
            "max_seq_len": 2048,
            "max_beam_width": 1,
            "flags": {"log_level": "error"},
        },
        {"--dtype": "float16", "--tp_size": "1", "--pp_size": "1"},
        {
            "--gpt_attention_plugin": "float16",
            "--gemm_plugin": "float16",
            "--max_batch_size": "32",
            "--max_input_len": "1024",
            "--max_seq_len": "2048",
            "--max_beam_width": "1",
            "--log_level": "error",
            "--max_draft_len": "83",
            "--speculative_decoding_mode": "lookahead_decoding",
        },
        # One GPU is the converter's default. `tllm` also passes --log_level to the converter.
        plan_differs={"--tp_size": None, "--pp_size": None, "--log_level": "error"},
    ),
    "llama-draft-model": Guide(
        "NVIDIA/TensorRT-LLM@v0.16.0:examples/draft_target_model/README.md, the target",
        "llama-2-7b",
        "0.16.0",
        {
            "dtype": "float16",
            "speculative_decoding_mode": "draft_tokens_external",
            "max_draft_len": 10,
            "use_paged_context_fmha": True,
            "gather_generation_logits": True,
            "gemm_plugin": "float16",
            "max_batch_size": 4,
            "max_input_len": 3200,
            "max_seq_len": 4800,
        },
        {"--dtype": "float16"},
        {
            "--gemm_plugin": "float16",
            "--use_paged_context_fmha": "enable",
            "--gather_generation_logits": "",
            "--speculative_decoding_mode": "draft_tokens_external",
            "--max_draft_len": "10",
            "--max_batch_size": "4",
            "--max_input_len": "3200",
            "--max_seq_len": "4800",
        },
    ),
}


@pytest.mark.parametrize("guide", GUIDES.values(), ids=GUIDES)
def test_plan_matches_the_guide(guide: Guide) -> None:
    assert compare(guide) == guide.plan_differs


@pytest.mark.parametrize("guide", GUIDES.values(), ids=GUIDES)
def test_programs_of_the_guides_version_accept_the_plan(guide: Guide) -> None:
    check_guide(guide)
