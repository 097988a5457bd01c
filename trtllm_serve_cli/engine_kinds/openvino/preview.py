"""Describe an OpenVINO engine before it is built, to predict its default limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.cpu_memory import EngineSize
from trtllm_serve_cli.engine_kinds.openvino.build_plan import choose_weights, estimate_size
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.parameters import count_parameters

if TYPE_CHECKING:
    from trtllm_serve_cli.sizing.facts import ModelFacts

_BYTES_PER_WEIGHT = 2


def preview_engine(facts: ModelFacts, checkpoint_format: str, quantization: str | None) -> Engine:
    """Return the engine that a build would create, without tokenizer properties.

    The weight size is an estimate. Raise `BadInput` if the engine kind does not support the
    quantization, or if the model's context length is unknown.
    """
    shape = facts.shape
    weights = choose_weights(checkpoint_format, quantization)
    if shape.max_position_embeddings is None:
        raise BadInput(
            f"The context length of {facts.source} is unknown.",
            why="config.json does not contain max_position_embeddings",
            next_step="add max_position_embeddings to the checkpoint's config.json, or use a "
            "different model",
        )
    return Engine(
        path=Path(),
        kind="openvino",
        model_name=facts.source,
        source=facts.source,
        fingerprint="",
        architecture=shape.architecture,
        weights=weights,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_position_embeddings,
        chat_template="",
        bos_token="",
        eos_token="",
        adds_bos=False,
        details=_estimate_engine_size(facts, checkpoint_format, weights),
    )


def _estimate_engine_size(
    facts: ModelFacts, checkpoint_format: str, weights: str
) -> EngineSize | None:
    """Return the engine's estimated sizes.

    Return None for a model with multi-head latent attention, because OpenVINO's cache format for
    latent vectors is unknown.
    """
    shape = facts.shape
    if shape.latent is not None:
        return None
    stored = facts.weight_bytes if checkpoint_format == "gguf" else None
    full_bytes = count_parameters(shape).total * _BYTES_PER_WEIGHT
    num_heads = 2 * shape.num_layers * shape.num_key_value_heads
    return EngineSize(
        weight_bytes=estimate_size(stored or full_bytes, weights),
        kv_heads=num_heads,
        kv_values=num_heads * shape.head_dim,
    )
