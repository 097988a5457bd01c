"""Plan the `embedding` layout, which has a single model that returns embeddings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.repository.model.model_config import ModelConfig, QueuePolicy

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine

# Minimum of the default value of `max_num_tokens`. The value can be high, because embedding models
# do not require memory for a KV cache.
_MAX_NUM_TOKENS = 16384
# Maps parameters to their keys in `parameters` of `config.pbtxt`.
_ENTRIES = {
    "engine_dir": "gpt_model_path",
    "tokenizer_dir": "tokenizer_dir",
    "max_num_seqs": "max_num_seqs",
    "max_seq_len": "max_seq_len",
    "max_num_tokens": "max_num_tokens",
    "num_threads": "num_threads",
    "gpu_device_ids": "gpu_device_ids",
    "kv_cache_free_gpu_mem_fraction": "kv_cache_free_gpu_mem_fraction",
    "engine_python": "engine_python",
    "cancellation_check_period_ms": "cancellation_check_period_ms",
}
_FIELDS = ("triton_max_batch_size", "max_queue_size")


def embedding_values(options: ServingOptions, values: Mapping[str, str]) -> dict[str, str]:
    """Return `values` with this layout's default of `max_num_tokens`, unless the user set it."""
    if options.max_num_tokens or options.parameters.get("max_num_tokens"):
        return dict(values)
    return {**values, "max_num_tokens": str(max(int(values["max_num_tokens"]), _MAX_NUM_TOKENS))}


def plan_embedding(
    name: str, engine: Engine, options: ServingOptions, values: Mapping[str, str]
) -> tuple[ModelConfig, ...]:
    """Return the configuration of the layout's only model, named `name`."""
    assert engine.embedding is not None
    contract = load_contracts()["embedding"]
    entries = {
        entry: values[parameter] for parameter, entry in _ENTRIES.items() if parameter in values
    }
    facts = {
        "engine_kind": engine.kind,
        "vocab_size": str(engine.vocab_size),
        "embedding": engine.embedding.to_json(),
    }
    # The parameters in `merged` contain additional engine arguments as JSON.
    for parameter in find_kind(engine.kind).serving.merged:
        facts["llm_arguments"] = json.dumps(_find_arguments(engine, options, parameter))
    max_queue_size = int(values["max_queue_size"])
    model = ModelConfig(
        name=name,
        title=f"text to embedding with {engine.model_name} ({engine.kind})",
        module="embedding",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters=facts | entries,
        max_batch_size=int(values["triton_max_batch_size"]),
        # The engine worker batches the requests. The dynamic batcher is enabled only to limit
        # Triton's queue.
        is_batched=max_queue_size > 0,
        queue=QueuePolicy(max_queue_size=max_queue_size),
    )
    return (model,)


def list_embedding_parameters(kind: str) -> set[str]:
    """Return the names of the parameters that have an effect in this layout."""
    return {*_ENTRIES, *_FIELDS, *find_kind(kind).serving.merged}


def _find_arguments(engine: Engine, options: ServingOptions, parameter: str) -> dict[str, Any]:
    requested = json.loads(options.parameters.get(parameter) or "{}")
    return {**(engine.llm_arguments or {}), **requested}
