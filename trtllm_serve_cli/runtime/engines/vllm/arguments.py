"""Map `config.pbtxt` parameters to vLLM's engine arguments.

The argument names are from vllm/engine/arg_utils.py in vllm-project/vllm (0.26).
"""

from __future__ import annotations

from ..engine_arguments import ArgumentTable, read_flag

VLLM_ARGUMENTS = ArgumentTable(
    "vllm_args",
    {
        "gpt_model_path": ("model", str),
        "tokenizer_dir": ("tokenizer", str),
        "max_num_seqs": ("max_num_seqs", int),
        "max_seq_len": ("max_model_len", int),
        "max_num_tokens": ("max_num_batched_tokens", int),
        "enable_chunked_context": ("enable_chunked_prefill", read_flag),
        "enable_kv_cache_reuse": ("enable_prefix_caching", read_flag),
        "kv_cache_free_gpu_mem_fraction": ("gpu_memory_utilization", float),
        "guided_decoding_backend": ("structured_outputs_config.backend", str),
        "max_loras": ("max_loras", int),
        "lora_cache_max_adapter_size": ("max_lora_rank", int),
    },
)
