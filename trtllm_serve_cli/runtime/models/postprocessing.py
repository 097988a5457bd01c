"""The `postprocessing` model, which decodes complete sequences of token ids to text."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..engine import InvalidRequest
from ..pulse import start_beating
from ..text.detokenize import decode_whole
from ..text.tokenizer import BadTokenizer, Tokenizer, load_tokenizer
from ..triton.parameters import Parameters
from ..triton.stub_workarounds import pick_requested, read_inputs

# Up to TensorRT-LLM 0.13, NVIDIA's ensemble passes these outputs of `tensorrt_llm` through this
# model, which prefixes their names with OUT_.
_RETURNED_INPUTS = (
    "CUM_LOG_PROBS",
    "OUTPUT_LOG_PROBS",
    "CONTEXT_LOGITS",
    "GENERATION_LOGITS",
    "BATCH_INDEX",
)


class TritonPythonModel:
    """The model that Triton's Python backend loads and calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        self._tokenizer_directory = Path(parameters.text("tokenizer_dir"))
        self._skips_special_tokens = parameters.flag("skip_special_tokens", True)
        start_beating("model", parameters.model_name)

    # Load the tokenizer with the first request. Most servers receive none, because the text models
    # decode tokens themselves.
    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(self._tokenizer_directory)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            inputs, tokenizer = read_inputs(request), self._tokenizer
        except (InvalidRequest, BadTokenizer, ImportError) as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        tokens = inputs["TOKENS_BATCH"]
        # Requests in the gpt layout do not contain sequence lengths. Count the non-negative ids
        # instead, because negative ids are always padding.
        lengths = inputs.get("SEQUENCE_LENGTH", np.sum(tokens >= 0, axis=-1))
        if lengths.shape != tokens.shape[:2] or np.any(lengths > tokens.shape[2]):
            why = (
                f"SEQUENCE_LENGTH (shape {list(lengths.shape)}) does not match TOKENS_BATCH (shape "
                f"{list(tokens.shape)}); send one length per sequence, and no length greater "
                "than the last dimension of TOKENS_BATCH"
            )
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(why))
        used = np.arange(tokens.shape[2]) < lengths[..., np.newaxis]
        if np.any(tokens[used] < 0):
            why = (
                f"TOKENS_BATCH contains {tokens[used].min()}, which is not a token id; send "
                "non-negative ids, and pad a sequence only after its first SEQUENCE_LENGTH tokens"
            )
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(why))
        decode = functools.partial(tokenizer.decode, skip_special_tokens=self._skips_special_tokens)
        # Like NVIDIA's model, return the texts of all rows in a one-dimensional tensor.
        texts = [
            decode_whole(decode, beam[: max(length, 0)].tolist()).encode()
            for row, row_lengths in zip(tokens, lengths, strict=True)
            for beam, length in zip(row, row_lengths, strict=True)
        ]
        outputs = {"OUTPUT": np.array(texts, dtype=object)} | {
            f"OUT_{name}": array for name, array in inputs.items() if name in _RETURNED_INPUTS
        }
        tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items()]
        return pb_utils.InferenceResponse(pick_requested(request.requested_output_names(), tensors))
