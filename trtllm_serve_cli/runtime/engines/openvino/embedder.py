"""Compute embeddings with OpenVINO.

This module runs the exported model directly and pools its outputs like sentence-transformers.
OpenVINO GenAI's `TextEmbeddingPipeline` cannot be used, because it does not return token counts. It
also does not accept token ids, which OpenAI API requests may contain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from ...embedding import Vector, normalize, pad_right, pool
from ...embedding_settings import EmbeddingSettings
from .threads import thread_properties


class OpenVinoEmbedder:
    """An embedding model that OpenVINO runs on the CPU.

    `config` contains engine_dir, num_threads and embedding (the fields of `EmbeddingSettings`).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._settings = EmbeddingSettings.from_dict(config["embedding"])
        threads = thread_properties(int(config["num_threads"]))
        properties = {"PERFORMANCE_HINT": "LATENCY", **threads}
        path = Path(config["engine_dir"], "openvino_model.xml")
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing; rebuild the engine")
        model = openvino.Core().compile_model(path, "CPU", properties)
        self._inputs = {each.get_any_name() for each in model.inputs}
        self._request: Any = model.create_infer_request()

    def embed(self, prompts: Sequence[Sequence[int]]) -> Vector:
        """Compute the embeddings of a batch of prompts.

        Return an array of shape [prompts, dimension].
        """
        ids, mask = pad_right(prompts)
        arrays = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.arange(ids.shape[1]) + np.zeros_like(ids),
        }
        outputs = self._request.infer({name: arrays[name] for name in self._inputs})
        vectors = pool(outputs["last_hidden_state"], mask, self._settings.pooling)
        return normalize(vectors) if self._settings.is_normalized else vectors

    def close(self) -> None:
        """Do nothing, because OpenVINO's resources are released when the process exits."""
