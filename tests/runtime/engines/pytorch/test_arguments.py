"""Test the conversion of `config.pbtxt` parameters to arguments for `LLM`, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engines.engine_arguments import merge_arguments
from trtllm_serve_cli.runtime.engines.pytorch.arguments import LLM_ARGUMENTS, arguments_of

ENTRIES = {
    "gpt_model_path": "/m",
    "tokenizer_dir": "/tok",
    "max_num_seqs": "64",
    "max_seq_len": "4096",
    "max_num_tokens": "8192",
    "max_beam_width": "1",
    "enable_chunked_context": "true",
    "guided_decoding_backend": "",
    "batch_scheduler_policy": "max_utilization",
    "kv_cache_free_gpu_mem_fraction": "0.85",
    "enable_kv_cache_reuse": "false",
    "max_attention_window_size": "4096,1024",
    "lora_cache_gpu_memory_fraction": "0.05",
    "llm_args": '{"tensor_parallel_size": 4, "kv_cache_config": {"dtype": "fp8"}}',
    "engine_kind": "pytorch",
}
ARGUMENTS = {
    "model": "/m",
    "tokenizer": "/tok",
    "max_batch_size": 64,
    "max_seq_len": 4096,
    "max_num_tokens": 8192,
    "max_beam_width": 1,
    "enable_chunked_prefill": True,
    "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
    "kv_cache_config": {
        "dtype": "fp8",
        "free_gpu_memory_fraction": 0.85,
        "enable_block_reuse": False,
        "max_attention_window": [4096, 1024],
    },
    "tensor_parallel_size": 4,
}


def test_entries_become_arguments() -> None:
    assert arguments_of(ENTRIES) == ARGUMENTS


def test_the_adapter_cache_is_only_for_models_with_adapters() -> None:
    entries = ENTRIES | {"llm_args": '{"lora_config": {"max_lora_rank": 8}}'}
    assert arguments_of(entries)["peft_cache_config"] == {"device_cache_percent": 0.05}


@pytest.mark.parametrize(
    ("text", "why"), [("{", "Expecting property name"), ("[]", "the value is not a JSON object")]
)
def test_rejects_arguments_that_are_not_an_object(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"llm_args has the invalid value '.*': {why}"):
        arguments_of({"llm_args": text})


def test_rejects_a_group_that_is_not_an_object() -> None:
    entries = {"llm_args": '{"kv_cache_config": 5}', "enable_kv_cache_reuse": "true"}
    with pytest.raises(ValueError, match=r"llm_args has .*: kv_cache_config is not a JSON"):
        arguments_of(entries)


def test_group_that_is_null_is_ignored() -> None:
    entries = {"llm_args": '{"kv_cache_config": null}', "enable_kv_cache_reuse": "true"}
    assert arguments_of(entries) == {"kv_cache_config": {"enable_block_reuse": True}}


def test_rejects_an_entry_that_is_not_a_number() -> None:
    with pytest.raises(ValueError, match="max_num_seqs has the invalid value 'many'"):
        arguments_of({"max_num_seqs": "many"})


def test_rejects_an_entry_that_is_neither_true_nor_false() -> None:
    with pytest.raises(ValueError, match=r"enable_chunked_context has .* 'yes': .* true or false"):
        arguments_of({"enable_chunked_context": "yes"})


_NUMBERS = st.integers(1, 10**6)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "model": st.text(min_size=1),
            "max_batch_size": _NUMBERS,
            "enable_chunked_prefill": st.booleans(),
            "tensor_parallel_size": _NUMBERS,
            "cuda_graph_config": st.none(),
            "kv_cache_config": st.dictionaries(
                st.sampled_from(["max_tokens", "tokens_per_block"]), _NUMBERS, min_size=1
            ),
            "lora_config": st.just({"max_lora_rank": 8}),
        },
    )
)
def test_arguments_of_reads_what_write_returns(arguments: dict[str, Any]) -> None:
    assert arguments_of(LLM_ARGUMENTS.write(arguments)) == arguments


def test_groups_are_merged() -> None:
    one = {"a": 1, "kv_cache_config": {"dtype": "fp8", "max_tokens": 1}}
    other = {"b": None, "kv_cache_config": {"max_tokens": 2}}
    assert merge_arguments(one, other) == {
        "a": 1,
        "b": None,
        "kv_cache_config": {"dtype": "fp8", "max_tokens": 2},
    }
