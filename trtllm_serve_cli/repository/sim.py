"""What is particular to repositories whose engine is simulated.

What its scheduler may do is said by upstream's parameters, as of any engine; how long its steps
take stays in the engine's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtllm_serve_cli.repository.config import ServingOptions
from trtllm_serve_cli.runtime.sim_timing import SchedulerLimits

if TYPE_CHECKING:
    from trtllm_serve_cli.build import Engine

_ENTRIES = (
    "max_num_seqs",
    "max_seq_len",
    "max_num_tokens",
    "max_tokens_in_paged_kv_cache",
    "batch_scheduler_policy",
    "enable_chunked_context",
    "enable_kv_cache_reuse",
    "exclude_input_in_output",
    "cancellation_check_period_ms",
    "engine_python",
)


def sim_values(engine: Engine, options: ServingOptions, max_seq_len: int) -> dict[str, str]:
    """Parameter -> value, as the simulation and the options ask."""
    limits = engine.simulation.limits if engine.simulation else SchedulerLimits()
    max_batch_size = str(options.max_batch_size or limits.max_batch_size)
    return {
        "triton_max_batch_size": max_batch_size,
        "max_num_seqs": max_batch_size,
        "max_seq_len": str(max_seq_len),
        "max_num_tokens": str(options.max_num_tokens or limits.max_num_tokens),
        "max_tokens_in_paged_kv_cache": str(limits.max_tokens_in_paged_kv_cache),
        "batch_scheduler_policy": limits.batch_scheduler_policy,
        "enable_chunked_context": str(limits.enable_chunked_context).lower(),
        "enable_kv_cache_reuse": str(limits.enable_kv_cache_reuse).lower(),
        "tokenizer_dir": str(engine.path),
        "engine_dir": str(engine.path),
    }


def sim_parameters(engine: Engine, values: Mapping[str, str]) -> dict[str, str]:
    """The entries of the `tensorrt_llm` model's `config.pbtxt`."""
    return {
        "engine_kind": engine.kind,
        "gpt_model_path": values["engine_dir"],
        "gpt_model_type": "inflight_fused_batching",
        "vocab_size": str(engine.vocab_size),
    } | {name: values[name] for name in _ENTRIES}
