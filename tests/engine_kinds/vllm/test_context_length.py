"""Context lengths that vLLM derives from config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtllm_serve_cli.engine_kinds.vllm.context_length import read_scaled_length

# The extension of the context that Qwen's model cards describe.
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
_UNSCALED = {"rope_type": "default", "rope_theta": 10000}


def read(folder: Path, **config: Any) -> int:
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 40960, **config}))
    return read_scaled_length(folder)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({}, 40960),
        ({"rope_scaling": None}, 40960),
        ({"rope_scaling": _YARN}, 131072),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, 81920),
        ({"rope_parameters": {**_YARN, "rope_theta": 1000000}}, 131072),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 81920),
        ({"rope_scaling": {"rope_type": "default", "factor": None}}, 40960),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 40960),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, 40960),
        ({"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}}, 40960),
        (
            {"rope_parameters": {"full_attention": _YARN, "sliding_attention": _YARN}},
            131072,
        ),
        ({"rope_parameters": {"full_attention": _YARN, "sliding_attention": _UNSCALED}}, 131072),
        ({"rope_parameters": _UNSCALED, "rope_scaling": _YARN}, 131072),
        ({"text_config": {"max_position_embeddings": 8, "rope_scaling": _YARN}}, 131072),
    ],
)
def test_length_includes_rope_scaling(tmp_path: Path, config: Any, length: int) -> None:
    assert read(tmp_path, **config) == length


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "linear", "factor": "two"}},
        {"rope_scaling": {"type": "linear", "factor": float("nan")}},
        {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": [8]}},
    ],
)
def test_invalid_rope_scaling_is_an_error(tmp_path: Path, config: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        read(tmp_path, **config)
