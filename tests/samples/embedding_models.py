"""Checkpoints of embedding models in the format of sentence-transformers."""

from __future__ import annotations

import json
from typing import Any

from tests.samples.checkpoints import hf_files


def embedding_files(
    *,
    modules: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"),
    pooling: dict[str, Any] | None = None,
    transformer: dict[str, Any] | None = None,
    prompts: dict[str, str] | None = None,
    **config: Any,
) -> dict[str, bytes]:
    """Return the files of a checkpoint, whose weights cannot be loaded."""
    entries = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{name}" if index else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for index, name in enumerate(modules)
    ]
    pooled = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}
    defaults = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": 100,
        "hidden_size": 8,
        "max_position_embeddings": 64,
    }
    files: dict[str, Any] = {
        "modules.json": entries,
        "1_Pooling/config.json": pooled if pooling is None else pooling,
        "sentence_bert_config.json": {"max_seq_length": 32, **(transformer or {})},
        "config_sentence_transformers.json": {"prompts": prompts or {}},
    }
    return hf_files(**{**defaults, **config}) | {
        name: json.dumps(content).encode() for name, content in files.items()
    }
