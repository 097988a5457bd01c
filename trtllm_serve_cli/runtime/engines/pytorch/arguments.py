"""Map `config.pbtxt` parameters to the arguments of TensorRT-LLM's `LLM`.

The argument names are from tensorrt_llm/llmapi/llm_args.py in NVIDIA/TensorRT-LLM (1.0 to 1.3).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..engine_arguments import Arguments, ArgumentTable, read_flag, read_numbers

LLM_ARGUMENTS = ArgumentTable(
    "llm_args",
    {
        "gpt_model_path": ("model", str),
        "tokenizer_dir": ("tokenizer", str),
        "max_num_seqs": ("max_batch_size", int),
        "max_seq_len": ("max_seq_len", int),
        "max_num_tokens": ("max_num_tokens", int),
        "max_beam_width": ("max_beam_width", int),
        "enable_chunked_context": ("enable_chunked_prefill", read_flag),
        "guided_decoding_backend": ("guided_decoding_backend", str),
        "batch_scheduler_policy": ("scheduler_config.capacity_scheduler_policy", str.upper),
        "max_tokens_in_paged_kv_cache": ("kv_cache_config.max_tokens", int),
        "kv_cache_free_gpu_mem_fraction": ("kv_cache_config.free_gpu_memory_fraction", float),
        "enable_kv_cache_reuse": ("kv_cache_config.enable_block_reuse", read_flag),
        "kv_cache_host_memory_bytes": ("kv_cache_config.host_cache_size", int),
        "kv_cache_onboard_blocks": ("kv_cache_config.onboard_blocks", read_flag),
        "max_attention_window_size": ("kv_cache_config.max_attention_window", read_numbers),
        "sink_token_length": ("kv_cache_config.sink_token_length", int),
        "lora_cache_optimal_adapter_size": ("peft_cache_config.optimal_adapter_size", int),
        "lora_cache_max_adapter_size": ("peft_cache_config.max_adapter_size", int),
        "lora_cache_gpu_memory_fraction": ("peft_cache_config.device_cache_percent", float),
        "lora_cache_host_memory_bytes": ("peft_cache_config.host_cache_size", int),
    },
)
# The LoRA adapter cache parameters. They are passed to `LLM` only if the model serves adapters.
_ADAPTER_CACHE_PARAMETERS = tuple(
    name for name in LLM_ARGUMENTS.parameters if name.startswith("lora_cache_")
)


def arguments_of(parameters: Mapping[str, str]) -> Arguments:
    """Return the `LLM` arguments for `config.pbtxt` parameters, ignoring empty parameters.

    Also ignore the LoRA adapter cache parameters if `llm_args` does not contain `lora_config`.
    Raise `ValueError` if a parameter cannot be parsed.
    """
    if "lora_config" in LLM_ARGUMENTS.read_rest(parameters):
        return LLM_ARGUMENTS.read(parameters)
    return LLM_ARGUMENTS.read(
        {name: text for name, text in parameters.items() if name not in _ADAPTER_CACHE_PARAMETERS}
    )
