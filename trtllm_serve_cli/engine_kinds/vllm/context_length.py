"""Compute the context length that vLLM derives from config.json.

Source: `_get_and_verify_max_len` in vllm/config/model.py, vllm-project/vllm 0.26.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.checkpoint_facts import read_context_length, read_text_config
from trtllm_serve_cli.sources.formats.sentence_transformers import is_embedding_model

# Types of RoPE scaling whose factor is already included in the length in config.json.
_INCLUDED = ("su", "longrope", "llama3")


def read_scaled_length(checkpoint: Path) -> int:
    """Return the context length of a checkpoint folder in tokens, including RoPE scaling.

    For example, Qwen's model cards describe how to extend the context of a model by adding YaRN to
    config.json. The length of an embedding model does not depend on RoPE scaling. Raise the same
    errors as `read_context_length`. Also raise `ValueError`, `TypeError`, `AttributeError` or
    `OverflowError` if the settings of RoPE scaling are not valid.
    """
    length = read_context_length(checkpoint)
    config = read_text_config(checkpoint)
    # Gemma 3's length in config.json already includes the factor, although the type is "linear".
    if is_embedding_model(checkpoint) or "gemma3" in str(config.get("model_type")):
        return length
    factor = 1.0
    for rope in _list_settings(config):
        kind = rope.get("rope_type") or rope.get("type")
        if kind in _INCLUDED:
            continue
        factor = float(rope.get("factor") or factor)
        if kind == "yarn":
            length = int(rope.get("original_max_position_embeddings") or length)
    return int(length * factor)


def _list_settings(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the RoPE settings.

    Transformers 5 names them `rope_parameters`, which may contain settings for each layer type. If
    config.json also contains `rope_scaling`, Transformers and vLLM use only `rope_scaling`.
    """
    settings = config.get("rope_scaling") or config.get("rope_parameters") or {}
    nested = [each for each in settings.values() if isinstance(each, Mapping)]
    yield from nested or [settings]
