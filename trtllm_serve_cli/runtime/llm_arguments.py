"""The arguments of TensorRT-LLM's `LLM`, and which of them `config.pbtxt` has as parameters.

Source of the names: NVIDIA/TensorRT-LLM, tensorrt_llm/llmapi/llm_args.py (1.0 to 1.3).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Arguments = dict[str, Any]

# Arguments that no parameter is for, as a JSON object.
REST = "llm_args"
_Read = Callable[[str], Any]


def _read_flag(text: str) -> bool:
    return text.lower() in ("1", "true")


def _read_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _spell_default(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spell_numbers(value: Any) -> str:
    return ",".join(map(str, value))


# Parameter -> argument, those of the second level as `key.key`, and how its text is read.
_PARAMETERS: dict[str, tuple[str, _Read]] = {
    "gpt_model_path": ("model", str),
    "tokenizer_dir": ("tokenizer", str),
    "max_num_seqs": ("max_batch_size", int),
    "max_seq_len": ("max_seq_len", int),
    "max_num_tokens": ("max_num_tokens", int),
    "max_beam_width": ("max_beam_width", int),
    "enable_chunked_context": ("enable_chunked_prefill", _read_flag),
    "guided_decoding_backend": ("guided_decoding_backend", str),
    "batch_scheduler_policy": ("scheduler_config.capacity_scheduler_policy", str.upper),
    "max_tokens_in_paged_kv_cache": ("kv_cache_config.max_tokens", int),
    "kv_cache_free_gpu_mem_fraction": ("kv_cache_config.free_gpu_memory_fraction", float),
    "enable_kv_cache_reuse": ("kv_cache_config.enable_block_reuse", _read_flag),
    "kv_cache_host_memory_bytes": ("kv_cache_config.host_cache_size", int),
    "kv_cache_onboard_blocks": ("kv_cache_config.onboard_blocks", _read_flag),
    "max_attention_window_size": ("kv_cache_config.max_attention_window", _read_numbers),
    "sink_token_length": ("kv_cache_config.sink_token_length", int),
    "lora_cache_optimal_adapter_size": ("peft_cache_config.optimal_adapter_size", int),
    "lora_cache_max_adapter_size": ("peft_cache_config.max_adapter_size", int),
    "lora_cache_gpu_memory_fraction": ("peft_cache_config.device_cache_percent", float),
    "lora_cache_host_memory_bytes": ("peft_cache_config.host_cache_size", int),
}
PARAMETERS = tuple(_PARAMETERS)
# Of the adapters' cache nothing is said to a model that takes none.
_OF_ADAPTERS = "peft_cache_config"


def arguments_of(parameters: Mapping[str, str]) -> Arguments:
    """The arguments that the entries of a `config.pbtxt` say; what is empty or missing is not said.

    Raises `ValueError` for an entry that cannot be read.
    """
    arguments: Arguments = json.loads(parameters.get(REST) or "{}")
    for parameter, (argument, read) in _PARAMETERS.items():
        text = parameters.get(parameter, "")
        if not text or (argument.startswith(_OF_ADAPTERS) and "lora_config" not in arguments):
            continue
        try:
            value = read(text)
        except ValueError as error:
            raise ValueError(f"{parameter} is {text!r}: {error}") from error
        parent, _, key = argument.rpartition(".")
        if parent:
            arguments[parent] = {**arguments.get(parent, {}), key: value}
        else:
            arguments[key] = value
    return arguments


def split_arguments(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The entries of a `config.pbtxt` that say `arguments`; `arguments_of` is the way back."""
    rest = {key: dict(value) if isinstance(value, dict) else value
            for key, value in arguments.items()}  # fmt: skip
    entries: dict[str, str] = {}
    for parameter, (argument, read) in _PARAMETERS.items():
        parent, _, key = argument.rpartition(".")
        there = rest.get(parent) if parent else rest
        if not isinstance(there, dict) or there.get(key) is None:
            continue
        value = there.pop(key)
        entries[parameter] = (
            _spell_numbers(value) if read is _read_numbers else _spell_default(value)
        )
        if parent and not there:
            del rest[parent]
    return {**entries, REST: json.dumps(rest, sort_keys=True)}


def merge_arguments(one: Mapping[str, Any], other: Mapping[str, Any]) -> Arguments:
    """`one`, but where `other` says something else; groups of the second level are merged."""
    merged = dict(one)
    for key, value in other.items():
        known = merged.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            merged[key] = {**known, **value}
        else:
            merged[key] = value
    return merged
