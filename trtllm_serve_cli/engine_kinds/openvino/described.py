"""Read the vocabulary size and tokenizer properties from a built OpenVINO engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.checkpoint_facts import (
    read_context_length,
    read_embedding_if_any,
    read_named_templates,
    read_text_config,
)
from trtllm_serve_cli.sources.formats.chat_templates import DEFAULT, TOOL_USE


def describe_built(directory: Path, checkpoint: Path, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `Engine` fields read from the built engine and its checkpoint."""
    embedding = read_embedding_if_any(checkpoint)
    return {
        "vocab_size": int(read_text_config(checkpoint)["vocab_size"])
        if embedding
        else _count_logits(directory),
        "embedding": embedding,
        "max_position_embeddings": read_context_length(checkpoint),
        **read_tokenizer(directory, checkpoint),
    }


def _count_logits(directory: Path) -> int:
    """Return the number of logits per token, which may exceed the tokenizer's vocabulary size."""
    import openvino

    model = openvino.Core().read_model(directory / "openvino_model.xml")
    return int(model.output("logits").get_partial_shape()[-1].get_length())


def read_tokenizer(directory: Path, checkpoint: Path) -> dict[str, Any]:
    """Return the OpenVINO tokenizer's properties as `Engine` fields."""
    import openvino_genai

    tokenizer = openvino_genai.Tokenizer(directory)
    bos_id = tokenizer.get_bos_token_id()
    first = tokenizer.encode("a").input_ids.data.reshape(-1)[0]
    default = tokenizer.get_original_chat_template() or tokenizer.chat_template or ""
    return {
        **choose_templates(checkpoint, default),
        "bos_token": tokenizer.get_bos_token(),
        "eos_token": tokenizer.get_eos_token(),
        "adds_bos": bool(bos_id >= 0 and first == bos_id),
    }


def choose_templates(checkpoint: Path, stored: str) -> dict[str, str]:
    """Return the chat templates as `Engine` fields.

    OpenVINO's tokenizer contains only the template `stored`. If the checkpoint has several named
    templates, return the checkpoint's templates.
    """
    templates = read_named_templates(checkpoint)
    has_several = bool(templates.keys() - {DEFAULT})
    return {
        "chat_template": templates.get(DEFAULT, "") if has_several else stored,
        "tool_chat_template": templates.get(TOOL_USE, ""),
    }
