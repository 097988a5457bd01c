"""Convert the text inputs of requests to token ids, for text models.

By default, the text model encodes requests itself, because a call to another model through Triton
takes longer than the encoding. If `ask_preprocessing` is set, the text model calls the
`preprocessing` model, which users can replace with their own model.
"""

from __future__ import annotations

from functools import partial

import triton_python_backend_utils as pb_utils

from ..engine import InvalidRequest
from ..triton.parameters import Parameters
from ..triton.tensors import Array, GetTensor
from .preprocessor import (
    PREPROCESSING_INPUTS,
    PREPROCESSING_OUTPUTS,
    Encode,
    Preprocessor,
    encode_text,
)
from .tokenizer import Tokenizer

# Part of Triton's error message for a request with a truncated string. If a batch contains a
# truncated string, Triton 2.51 rejects the whole batch. Text models send only valid requests, so
# another request in the batch caused the error, and a retry in a different batch can succeed.
_MALFORMED = "string data for inference input"
_NUM_ATTEMPTS = 10


def load_encoder(parameters: Parameters, tokenizer: Tokenizer) -> Encode:
    """Return a function that converts a text model's inputs to inputs of `tensorrt_llm`.

    The function raises `InvalidRequest` if an input is missing or invalid, or if the
    `preprocessing` model returns an error.
    """
    if parameters.flag("ask_preprocessing", False):
        model = parameters.text("preprocessing_model_name", "preprocessing")
        return partial(encode_text, partial(_call_model, model))
    preprocessor = Preprocessor.of(parameters, lambda: tokenizer)
    return partial(encode_text, preprocessor.encode)


def _call_model(model: str, get: GetTensor) -> dict[str, Array]:
    tensors = {name: get(name) for name in PREPROCESSING_INPUTS}
    inputs = [pb_utils.Tensor(name, array) for name, array in tensors.items() if array is not None]
    for _ in range(_NUM_ATTEMPTS):
        response = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=list(PREPROCESSING_OUTPUTS), inputs=inputs
        ).exec()
        if not response.has_error():
            return {each.name(): each.as_numpy() for each in response.output_tensors()}
        if _MALFORMED not in response.error().message():
            break
    raise InvalidRequest(response.error().message())
