"""Read the vocabulary size and tokenizer properties from a built OpenVINO engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.checkpoint_facts import (
    read_context_length,
    read_embedding_if_any,
    read_text_config,
)


def describe_built(directory: Path, checkpoint: Path, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `Engine` fields read from the built engine and its checkpoint."""
    embedding = read_embedding_if_any(checkpoint)
    return {
        "vocab_size": int(read_text_config(checkpoint)["vocab_size"])
        if embedding
        else _count_logits(directory),
        "embedding": embedding,
        "max_position_embeddings": read_context_length(checkpoint),
        **read_tokenizer(directory),
    }


def _count_logits(directory: Path) -> int:
    """Return the number of logits per token, which may exceed the tokenizer's vocabulary size."""
    import openvino

    model = openvino.Core().read_model(directory / "openvino_model.xml")
    return int(model.output("logits").get_partial_shape()[-1].get_length())


def read_tokenizer(directory: Path) -> dict[str, Any]:
    """Return the OpenVINO tokenizer's properties as `Engine` fields."""
    import openvino_genai

    tokenizer = openvino_genai.Tokenizer(directory)
    bos_id = tokenizer.get_bos_token_id()
    first = tokenizer.encode("a").input_ids.data.reshape(-1)[0]
    return {
        "chat_template": tokenizer.get_original_chat_template() or tokenizer.chat_template or "",
        "bos_token": tokenizer.get_bos_token(),
        "eos_token": tokenizer.get_eos_token(),
        "adds_bos": bool(bos_id >= 0 and first == bos_id),
    }
