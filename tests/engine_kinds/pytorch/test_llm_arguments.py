"""Options as arguments of TensorRT-LLM's `LLM`, by version."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.pytorch.llm_arguments import plan_llm_arguments
from trtllm_serve_cli.errors import BadInput

PLAIN = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "sampler_type": "TRTLLMSampler",
    "cuda_graph_config": {"enable_padding": True},
}
# With speculative decoding, the sampler cannot be selected.
DRAFTING = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}


def plan(version: str = "1.2.0", weights: str | None = None, **options: Any) -> dict[str, Any]:
    return plan_llm_arguments(EngineOptions(**options), version, weights=weights)


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, {}),
        ({"tp": 4, "pp": 2}, {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}),
        (
            {"tp": 8, "moe_tp": 2, "moe_ep": 4},
            {
                "tensor_parallel_size": 8,
                "moe_tensor_parallel_size": 2,
                "moe_expert_parallel_size": 4,
            },
        ),
        (
            {"dtype": "float16", "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 4096},
            {"dtype": "float16", "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 4096},
        ),
        ({"max_batch_size": 256}, {"max_batch_size": 256}),
        (
            {"max_beam_width": 4, "max_batch_size": 8},
            {
                "max_beam_width": 4,
                "max_batch_size": 8,
                "disable_overlap_scheduler": True,
                "cuda_graph_config": None,
            },
        ),
        (
            {"kv_cache_dtype": "fp8", "tokens_per_block": 64},
            {"kv_cache_config": {"dtype": "fp8", "tokens_per_block": 64}},
        ),
        ({"gather_generation_logits": True}, {"gather_generation_logits": True}),
        ({"paged_kv_cache": True, "remove_input_padding": True, "context_fmha": True}, {}),
        (
            {"lora_dir": ("/a",), "lora_target_modules": ("attn_q", "attn_v"), "max_lora_rank": 8},
            {
                "enable_lora": True,
                "lora_config": {
                    "lora_dir": ["/a"],
                    "lora_target_modules": ["attn_q", "attn_v"],
                    "max_lora_rank": 8,
                },
            },
        ),
    ],
    ids=str,
)
def test_options_become_llm_arguments(options: dict[str, Any], more: dict[str, Any]) -> None:
    assert plan(**options) == PLAIN | more


@pytest.mark.parametrize(
    ("options", "version", "config", "more"),
    [
        (
            {"speculative_decoding_mode": "eagle", "speculative_model": "/e", "max_draft_len": 3},
            "1.0.0",
            {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "/e"},
            {},
        ),
        (
            {"speculative_decoding_mode": "eagle", "speculative_model": "/e", "max_draft_len": 3},
            "1.3.0rc5",
            {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "/e"},
            {},
        ),
        (
            {
                "speculative_decoding_mode": "draft_tokens_external",
                "speculative_model": "/d",
                "max_draft_len": 4,
            },
            "1.3.0",
            {"decoding_type": "Draft_Target", "max_draft_len": 4, "speculative_model": "/d"},
            {"disable_overlap_scheduler": True},
        ),
        (
            {
                "speculative_decoding_mode": "draft_tokens_external",
                "speculative_model": "/d",
                "max_draft_len": 4,
            },
            "1.2.0",
            {"decoding_type": "DraftTarget", "max_draft_len": 4, "speculative_model_dir": "/d"},
            {"disable_overlap_scheduler": True},
        ),
        (
            {"speculative_decoding_mode": "mtp"},
            "1.1.0",
            {"decoding_type": "MTP", "num_nextn_predict_layers": 1},
            {},
        ),
        (
            {"speculative_decoding_mode": "ngram", "max_draft_len": 4},
            "1.2.0",
            {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 4},
            {"disable_overlap_scheduler": True},
        ),
    ],
    ids=str,
)
def test_speculative_decoding_options_become_llm_arguments(
    options: dict[str, Any], version: str, config: dict[str, Any], more: dict[str, Any]
) -> None:
    assert plan(version, **options) == DRAFTING | {"speculative_config": config} | more


@pytest.mark.parametrize(
    ("version", "sampler"),
    [
        ("1.0.0", {"enable_trtllm_sampler": True}),
        ("1.0.3.2510", {"enable_trtllm_sampler": True}),
        ("1.1.0", {"sampler_type": "TRTLLMSampler"}),
        ("1.2.1", {"sampler_type": "TRTLLMSampler"}),
        ("1.3.0rc5", {"sampler_type": "TRTLLMSampler"}),
        ("1.3.0rc25", {"sampler_type": "TRTLLMSampler"}),
        ("1.3.0rc26", {}),
        ("1.3.0", {}),
    ],
)
def test_each_version_gets_the_sampler_that_applies_penalties(
    version: str, sampler: dict[str, Any]
) -> None:
    expected = DRAFTING | {"cuda_graph_config": {"enable_padding": True}} | sampler
    assert plan(version) == expected


def test_remote_code_is_trusted_if_requested() -> None:
    arguments = plan_llm_arguments(EngineOptions(), "1.2.0", trust_remote_code=True)
    assert arguments == PLAIN | {"trust_remote_code": True}


@pytest.mark.parametrize("requested", [None, "fp8"])
def test_weights_keep_the_quantization_of_the_checkpoint(requested: str | None) -> None:
    assert plan(weights="fp8", quantization=requested) == PLAIN


@pytest.mark.parametrize(
    ("options", "version", "why"),
    [
        ({}, "0.21.0", "TensorRT-LLM 0.21.0 does not support the pytorch engine kind"),
        ({}, "newest", "'newest' is not a valid TensorRT-LLM version"),
        ({"tokens_per_block": 64}, "1.0.0", "TensorRT-LLM 1.0 does not support tokens_per_block"),
        (
            {"kv_cache_dtype": "nvfp4"},
            "1.2.0",
            "TensorRT-LLM 1.2 does not support kv_cache_dtype nvfp4",
        ),
        ({"kv_cache_dtype": "int8"}, "1.2.0", "does not support kv_cache_dtype int8"),
        (
            {"gemm_plugin": "float16"},
            "1.2.0",
            "--engine pytorch does not support gemm_plugin",
        ),
        (
            {"opt_num_tokens": 64},
            "1.2.0",
            "--engine pytorch does not support opt_num_tokens",
        ),
        ({"paged_kv_cache": False}, "1.2.0", "cannot disable paged_kv_cache"),
        ({"quantization": "fp8"}, "1.2.0", "cannot serve this checkpoint with --quantization fp8"),
        ({"max_lora_rank": 8}, "1.2.0", "max_lora_rank requires lora_target_modules or lora_dir"),
        ({"max_draft_len": 3}, "1.2.0", "max_draft_len requires speculative_decoding_mode"),
        (
            {"speculative_decoding_mode": "medusa"},
            "1.2.0",
            "not support speculative_decoding_mode medusa",
        ),
        ({"speculative_decoding_mode": "eagle"}, "1.2.0", "requires a draft model"),
        ({"speculative_decoding_mode": "ngram"}, "1.2.0", "requires max_draft_len"),
        (
            {"speculative_decoding_mode": "mtp", "speculative_model": "/d"},
            "1.2.0",
            "speculative_model cannot be used with",
        ),
        (
            {"speculative_decoding_mode": "mtp", "max_beam_width": 2},
            "1.2.0",
            "cannot be combined with max_beam_width 2",
        ),
    ],
    ids=str,
)
def test_rejects_unsupported_options(options: dict[str, Any], version: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        plan(version, **options)


def test_error_names_the_version_that_has_the_option() -> None:
    with pytest.raises(BadInput) as refused:
        plan("1.0.0", tokens_per_block=64)
    assert str(refused.value) == (
        "The LLM API of TensorRT-LLM 1.0 does not support tokens_per_block.\n"
        "Why: support was added in 1.1\n"
        "Next: omit tokens_per_block, or use TensorRT-LLM 1.1 or later"
    )
