"""The model in the embedding layout, which computes embeddings of text or token ids.

Each row of a request is sent to the engine worker as a separate request. The worker batches the
rows of all requests. The response has one row per input.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..embedding import decode_vector, shorten
from ..embedding_settings import EmbeddingSettings
from ..engine import InvalidRequest, SequenceUpdate
from ..models import tensorrt_llm
from ..requests.responses import ResponseBuilder
from ..text.text_limits import check_prompt_lengths
from ..text.tokenizer import load_tokenizer
from ..triton.parameters import Parameters
from ..triton.tensors import Array, GetTensor, as_text

_INPUTS = frozenset(("text_input", "input_ids", "prompt_name", "dimensions"))


@dataclass(frozen=True, slots=True)
class EmbeddingRow:
    """One input of a request.

    - `fields`: the fields of the `GenerationRequest`, except `id`.
    - `batch_index`: the row index in the request.
    - `dimensions`: the requested embedding length, or None for the full length.
    """

    fields: dict[str, Any]
    batch_index: int
    dimensions: int | None


class TritonPythonModel(tensorrt_llm.TritonPythonModel):
    """The model that Triton's Python backend loads and calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        self._settings = EmbeddingSettings.from_dict(json.loads(parameters.text("embedding")))
        self._tokenizer = load_tokenizer(Path(parameters.text("tokenizer_dir")))
        self._start(parameters, _INPUTS)

    def _parse(self, get: GetTensor, is_streaming: bool) -> list[EmbeddingRow]:
        texts, ids = get("text_input"), get("input_ids")
        dimensions = self._read_dimensions(get("dimensions"))
        if ids is not None and texts is None:
            if get("prompt_name") is not None:
                raise InvalidRequest(
                    "prompt_name requires text_input; send text_input instead of input_ids, or "
                    "omit prompt_name"
                )
            rows = ids.tolist()
        elif texts is not None and ids is None:
            rows = self._encode(texts, get("prompt_name"))
        else:
            raise InvalidRequest(
                "a request must contain exactly one of the inputs text_input and input_ids; send "
                "one of the two inputs and omit the other"
            )
        if not rows:
            name = "input_ids" if texts is None else "text_input"
            raise InvalidRequest(f"{name} has no rows; send at least one row")
        return [
            EmbeddingRow({"input_ids": tuple(row), "max_new_tokens": 0}, index, dimensions)
            for index, row in enumerate(rows)
        ]

    def _new_response_builder(
        self, row: EmbeddingRow, *, arrival_time_ns: int, is_streaming: bool
    ) -> ResponseBuilder:
        return EmbeddingResponseBuilder(row, self._settings)

    def _encode(self, texts: Array, prompt_name: Array | None) -> list[list[int]]:
        prefix = self._find_prompt(prompt_name)
        rows = [prefix + as_text(text, "text_input") for text in texts.reshape(-1)]
        check_prompt_lengths("text_input", rows, self._worker.limits.max_seq_len)
        return [self._tokenizer.encode(row) for row in rows]

    def _find_prompt(self, prompt_name: Array | None) -> str:
        names = [] if prompt_name is None else list(prompt_name.reshape(-1))
        found = {self._settings.find_prompt(as_text(each, "prompt_name")) for each in names}
        if len(found) > 1:
            raise InvalidRequest(
                "prompt_name differs between rows; send a separate request for each prompt_name"
            )
        return found.pop() if found else ""

    def _read_dimensions(self, tensor: Array | None) -> int | None:
        sizes = {int(each) for each in ([] if tensor is None else tensor.reshape(-1))}
        if len(sizes) > 1:
            raise InvalidRequest(
                "dimensions differs between rows; send a separate request for each value"
            )
        for size in sizes:
            self._settings.check_dimensions(size)
        return sizes.pop() if sizes else None


class EmbeddingResponseBuilder:
    """A builder for the single response to one input."""

    def __init__(self, row: EmbeddingRow, settings: EmbeddingSettings) -> None:
        self._row = row
        self._settings = settings
        self.is_done = False

    def add(self, update: SequenceUpdate) -> dict[str, Array] | None:
        """Add an update. Return the response to send now, or None."""
        if update.finish_reason is None:
            return None
        self.is_done = True
        vector = shorten(decode_vector(update.embedding), self._row.dimensions, self._settings)
        numbers = {
            "num_input_tokens": len(self._row.fields["input_ids"]),
            "batch_index": self._row.batch_index,
            "sequence_index": 0,
        }
        return {"embedding": vector[None]} | {
            name: np.array([[value]], dtype=np.int32) for name, value in numbers.items()
        }

    def end_early(self) -> list[dict[str, Array]]:
        """End the row. Return no responses, because a row has none until its embedding arrives."""
        self.is_done = True
        return []
