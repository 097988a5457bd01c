"""Serve a checkpoint with TensorRT-LLM's LLM API.

In the inflight layout, each `LLM` argument that corresponds to a parameter in NVIDIA's templates
has an entry in `config.pbtxt`. One additional entry contains all other arguments as a JSON object.
In the llmapi layout, `model.yaml` contains all arguments with their `LLM` names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.checkpoint_serving import (
    MAX_BATCH_SIZE,
    MAX_NUM_TOKENS,
    front_ends,
    read_arguments,
    values_of,
)
from trtllm_serve_cli.engine_kinds.kind import Serving
from trtllm_serve_cli.engine_kinds.pytorch.argument_versions import check_arguments
from trtllm_serve_cli.engine_kinds.serving import (
    WORKER_PARAMETERS,
    ServingOptions,
    choose_context_length,
)
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.engines.engine_arguments import Arguments, merge_arguments
from trtllm_serve_cli.runtime.engines.pytorch.arguments import LLM_ARGUMENTS, arguments_of

# Arguments in `cuda_graph_config` that set the sizes of the captured graphs. `LLM` rejects both
# together.
_GRAPH_SIZES = frozenset(("batch_sizes", "max_batch_size"))
# Entries that tllm's model or engine worker reads. These entries are not `LLM` arguments.
_MODEL_ENTRIES = ("exclude_input_in_output", "cancellation_check_period_ms")


def _plan_values(
    engine: Engine, options: ServingOptions, overrides: Mapping[str, str]
) -> dict[str, str]:
    """Return the parameter values.

    Raise `BadInput` if the context length is too large, or if an argument is invalid or not
    supported by the TensorRT-LLM version. Also raise `BadInput` if the `max_beam_width` parameter
    differs from the `LLM` argument with the same name.
    """
    choose_context_length(engine, options, overrides)
    check_arguments(read_arguments(LLM_ARGUMENTS, overrides), _version_of(engine))
    arguments = _merge(engine, options, overrides)
    values = values_of(LLM_ARGUMENTS, arguments)
    _check_beams(arguments, overrides)
    values |= front_ends(overrides, int(values["triton_max_batch_size"]))
    lora = arguments.get("lora_config")
    if isinstance(lora, dict) and "max_lora_rank" in lora:
        values["lora_cache_max_adapter_size"] = str(lora["max_lora_rank"])
    return values


def _model_yaml(entries: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments for `model.yaml` and the entries that remain in `config.pbtxt`."""
    arguments = arguments_of(entries)
    first = {name: arguments.pop(name) for name in ("model", "tokenizer")}
    named = (*LLM_ARGUMENTS.parameters, *_MODEL_ENTRIES)
    # Keep the `lora_cache_` entries even if an argument has the same value, because the engine
    # worker reads the entries.
    remaining = {
        name: value
        for name, value in entries.items()
        if value and (name not in named or name.startswith("lora_cache_"))
    }
    return {**first, "backend": "pytorch", **arguments}, remaining


def _merge(engine: Engine, options: ServingOptions, overrides: Mapping[str, str]) -> Arguments:
    requested = {
        name: value
        for name in ("max_batch_size", "max_seq_len", "max_num_tokens", "max_beam_width")
        if (value := getattr(options, name)) is not None
    }
    arguments = merge_arguments(engine.llm_arguments or {}, requested)
    arguments = merge_arguments(arguments, json.loads(overrides.get(LLM_ARGUMENTS.rest) or "{}"))
    defaults = {
        "model": str(engine.path),
        "tokenizer": str(engine.path),
        "max_batch_size": MAX_BATCH_SIZE,
        "max_seq_len": engine.max_position_embeddings,
        "max_num_tokens": MAX_NUM_TOKENS,
        "max_beam_width": 1,
    }
    return _with_graphs(merge_arguments(defaults, arguments))


def _with_graphs(arguments: Arguments) -> Arguments:
    """Return the arguments with CUDA graphs for all batch sizes up to `max_batch_size`.

    By default, the largest captured size is 128, so larger batches would not use a CUDA graph. Do
    not change the sizes that the user set, and do not add graphs without padding, which need a
    graph for each size.
    """
    graphs = arguments.get("cuda_graph_config") or {}
    if not graphs.get("enable_padding") or not _GRAPH_SIZES.isdisjoint(graphs):
        return arguments
    sized = {**graphs, "max_batch_size": arguments["max_batch_size"]}
    return {**arguments, "cuda_graph_config": sized}


def _version_of(engine: Engine) -> str:
    """Return the TensorRT-LLM version that will serve the engine, or "" if unknown."""
    return str(engine.details or "")


def _check_beams(arguments: Arguments, overrides: Mapping[str, str]) -> None:
    """Raise `BadInput` if the `max_beam_width` parameter and argument differ."""
    width = int(arguments["max_beam_width"])
    if int(overrides.get("max_beam_width") or width) != width:
        raise BadInput(
            f"The parameter max_beam_width is {overrides['max_beam_width']}, but the engine "
            f"argument max_beam_width is {width}.",
            why="the two values must be equal",
            next_step=f"omit the parameter, or add --max-beam-width {overrides['max_beam_width']}",
        )


SERVING = Serving(
    layouts=("inflight", "gpt", "llmapi", "vllm"),
    parameters=WORKER_PARAMETERS
    | frozenset(LLM_ARGUMENTS.parameters)
    | {"lora_prefetch_dir", "gpu_device_ids"},
    plan_values=_plan_values,
    merged=frozenset({LLM_ARGUMENTS.rest}),
    empty_is_default=True,
    contract_version=_version_of,
    model_yaml=_model_yaml,
)
