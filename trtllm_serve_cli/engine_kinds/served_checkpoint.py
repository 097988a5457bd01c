"""Plan and describe engines that serve a checkpoint without a build.

The plan has no steps, and the engine folder is the checkpoint. The engine's `llm_arguments` are the
arguments for vLLM or TensorRT-LLM's LLM API, without the model path. They include the default
serving limits for this machine's GPUs if the limits are known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_plan import (
    BuildPlan,
    BuildRequest,
    Toolchain,
    check_num_gpus,
    embedding_facts,
    facts_of_engine,
)
from trtllm_serve_cli.build.checkpoint_facts import (
    read_context_length,
    read_embedding_if_any,
    read_text_config,
    read_tokenizer_facts,
    read_weight_format,
)
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.fingerprint import fingerprint_of_facts
from trtllm_serve_cli.engine_kinds.card_limits import find_card_limits
from trtllm_serve_cli.engine_kinds.kind import Building
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.parallelism import check_parallelism
from trtllm_serve_cli.sizing.serving_limits import ServingLimits
from trtllm_serve_cli.sizing.shape import find_shape
from trtllm_serve_cli.sources.checkpoint import Checkpoint, read_config

# A function that returns the engine's arguments. The function's third parameter is the checkpoint's
# quantization, or None for unquantized weights.
PlanArguments = Callable[[BuildRequest, Toolchain, "str | None"], dict[str, Any]]
PlanLimits = Callable[[ServingLimits], dict[str, Any]]


def serve_checkpoint(
    plan_arguments: PlanArguments,
    no_build_reason: str,
    *,
    plan_limits: PlanLimits | None = None,
    read_length: Callable[[Path], int] = read_context_length,
    needs_equal_groups: bool = True,
) -> Building:
    """Return the `Building` for a kind that serves checkpoints directly.

    `plan_arguments` returns the engine's arguments. `no_build_reason` is a sentence for the user
    that explains why nothing is built. `plan_limits` converts the default limits for a GPU to the
    engine's arguments, or is None if the limits do not depend on the GPU. `read_length` returns the
    context length of a checkpoint folder. If `needs_equal_groups` is true, expert parallelism
    requires the same number of experts on all GPUs.
    """

    def choose_arguments(
        request: BuildRequest, tools: Toolchain, weights: str | None
    ) -> dict[str, Any]:
        arguments = plan_arguments(request, tools, weights)
        limits = find_card_limits(request, tools) if plan_limits else None
        return {**plan_limits(limits), **arguments} if plan_limits and limits else arguments

    def plan(request: BuildRequest, tools: Toolchain) -> BuildPlan:
        check_num_gpus(request, tools)
        _check_parallelism_if_known(request, needs_equal_groups=needs_equal_groups)
        weights = read_weight_format(request.checkpoint)
        return _plan(request, choose_arguments(request, tools, weights))

    def describe(request: BuildRequest, tools: Toolchain) -> Engine:
        engine = _describe(request, read_length)
        weights = read_weight_format(request.checkpoint)
        arguments = choose_arguments(request, tools, weights)
        return _with_arguments(engine, request.checkpoint, weights, arguments)

    return Building(plan=plan, describe=describe, no_build_reason=no_build_reason)


def _plan(request: BuildRequest, arguments: dict[str, Any]) -> BuildPlan:
    checkpoint, dtype = request.checkpoint, request.options.dtype
    facts = {
        **facts_of_engine(checkpoint, request.kind, dtype),
        **embedding_facts(checkpoint),
        "llm_arguments": arguments,
    }
    return BuildPlan(
        model_name=request.model_name,
        kind=request.kind,
        weights=dtype,
        checkpoint=checkpoint,
        engine_dir=checkpoint.path,
        steps=(),
        fingerprint=fingerprint_of_facts(facts),
        estimated_bytes=0,
        facts=facts,
    )


def _with_arguments(
    engine: Engine, checkpoint: Checkpoint, quantized: str | None, arguments: dict[str, Any]
) -> Engine:
    weights = quantized or engine.weights
    facts = {
        **facts_of_engine(checkpoint, engine.kind, weights),
        **embedding_facts(checkpoint),
        "llm_arguments": arguments,
    }
    return dataclasses.replace(
        engine,
        weights=weights,
        fingerprint=fingerprint_of_facts(facts),
        llm_arguments=arguments,
    )


def _describe(request: BuildRequest, read_length: Callable[[Path], int]) -> Engine:
    checkpoint = request.checkpoint
    try:
        config = read_text_config(checkpoint.path)
        vocab_size = int(config["vocab_size"])
        context_length = read_length(checkpoint.path)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadInput(
            f"{checkpoint.path / 'config.json'} does not describe a language model.",
            why=f"{type(error).__name__}: {error}",
            next_step="pass the checkpoint of a text-generation model with -s hf:ORG/NAME",
        ) from error
    weights = str(config.get("torch_dtype") or config.get("dtype") or "as in the checkpoint")
    return Engine(
        path=checkpoint.path,
        kind=request.kind,
        model_name=request.model_name,
        source=checkpoint.source,
        fingerprint=fingerprint_of_facts(facts_of_engine(checkpoint, request.kind, weights)),
        architecture=checkpoint.architecture,
        weights=weights,
        vocab_size=vocab_size,
        max_position_embeddings=context_length,
        embedding=read_embedding_if_any(checkpoint.path),
        **dataclasses.asdict(read_tokenizer_facts(checkpoint.path)),
    )


def _check_parallelism_if_known(request: BuildRequest, *, needs_equal_groups: bool) -> None:
    """Raise `BadInput` if the parallelism options do not fit the model.

    The options are checked only if the model's shape is known. For other models, the engine itself
    checks the options when the server starts.
    """
    if shape := find_shape(read_config(request.checkpoint)):
        options = request.options
        check_parallelism(
            shape,
            options.tp,
            options.pp,
            options.moe_tp,
            options.moe_ep,
            needs_equal_groups=needs_equal_groups,
        )
