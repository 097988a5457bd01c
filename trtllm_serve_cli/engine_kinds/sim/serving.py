"""Serve a simulated engine with the same template parameters as other engines.

The engine worker reads the timing data from the engine folder.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.kind import Serving
from trtllm_serve_cli.engine_kinds.serving import (
    WORKER_PARAMETERS,
    CoreModel,
    ServingOptions,
    choose_context_length,
)
from trtllm_serve_cli.runtime.engines.sim.timing import SchedulerLimits, Simulation


def _plan_values(
    engine: Engine, options: ServingOptions, overrides: Mapping[str, str]
) -> dict[str, str]:
    simulation = engine.details
    limits = simulation.limits if isinstance(simulation, Simulation) else SchedulerLimits()
    max_batch_size = str(options.max_batch_size or limits.max_batch_size)
    return {
        "triton_max_batch_size": max_batch_size,
        "max_num_seqs": max_batch_size,
        "max_seq_len": str(choose_context_length(engine, options, overrides)),
        "max_num_tokens": str(options.max_num_tokens or limits.max_num_tokens),
        "max_tokens_in_paged_kv_cache": str(limits.max_tokens_in_paged_kv_cache),
        "batch_scheduler_policy": limits.batch_scheduler_policy,
        "enable_chunked_context": str(limits.enable_chunked_context).lower(),
        "enable_kv_cache_reuse": str(limits.enable_kv_cache_reuse).lower(),
        "tokenizer_dir": str(engine.path),
        "engine_dir": str(engine.path),
    }


SERVING = Serving(
    layouts=("inflight", "gpt", "llmapi", "vllm", "embedding"),
    parameters=WORKER_PARAMETERS
    | {"max_tokens_in_paged_kv_cache", "enable_chunked_context", "batch_scheduler_policy"},
    plan_values=_plan_values,
    # The engine worker does not load a tokenizer, so the `tensorrt_llm` model does not need the
    # tokenizer path.
    core=CoreModel(omitted=frozenset({"tokenizer_dir"})),
)
