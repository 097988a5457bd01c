"""The `postprocessing` model, which decodes complete sequences of token ids to text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..text.detokenize import decode_whole
from ..text.tokenizer import load_tokenizer
from ..triton.parameters import Parameters
from ..triton.stub_workarounds import read_inputs


class TritonPythonModel:
    """The functions that Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        self._tokenizer = load_tokenizer(Path(parameters.text("tokenizer_dir")))
        self._skips_special_tokens = parameters.flag("skip_special_tokens", True)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        inputs = read_inputs(request)
        tokens, lengths = inputs["TOKENS_BATCH"], inputs["SEQUENCE_LENGTH"]
        if lengths.shape != tokens.shape[:2] or np.any(lengths > tokens.shape[2]):
            why = (
                f"SEQUENCE_LENGTH {list(lengths.shape)} does not match TOKENS_BATCH "
                f"{list(tokens.shape)}; send one length per sequence, at most the last dimension"
            )
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(why))
        used = np.arange(tokens.shape[2]) < lengths[..., np.newaxis]
        if np.any(tokens[used] < 0):
            why = (
                f"TOKENS_BATCH contains {tokens[used].min()}, which is not a token id; ids start "
                "at 0, and padding must follow the SEQUENCE_LENGTH tokens of a sequence"
            )
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(why))
        # Like upstream, return the sequences of all rows in one dimension.
        texts = [
            decode_whole(self._decode, beam[: max(length, 0)].tolist()).encode()
            for row, row_lengths in zip(tokens, lengths, strict=True)
            for beam, length in zip(row, row_lengths, strict=True)
        ]
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT", np.array(texts, dtype=object))]
        )

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special_tokens)
