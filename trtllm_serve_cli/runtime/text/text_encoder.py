"""Convert the text inputs of requests to token ids, for text models.

By default, the text model encodes requests itself, because a call to another model through Triton
takes longer than the encoding. If `ask_preprocessing` is set, the text model calls the model
`preprocessing`, which users can replace with their own model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import triton_python_backend_utils as pb_utils

from ..engine import InvalidRequest
from ..triton.parameters import Parameters
from ..triton.tensors import Array, GetTensor
from .preprocessor import Preprocessor
from .tokenizer import Tokenizer

# Input name in `preprocessing` -> input name in a text model.
_INPUTS = {
    "QUERY": "text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
}
# Output name in `preprocessing` -> input name in `tensorrt_llm`.
_OUTPUTS = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "STOP_WORDS_IDS": "stop_words_list",
    "BAD_WORDS_IDS": "bad_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
TEXT_INPUTS = frozenset(_INPUTS.values())
# Part of Triton's error for a request with a truncated string. Triton 2.51 then rejects the whole
# batch. Text models send only valid requests, so another request in the batch has caused the error,
# and a retry can succeed in a different batch.
_MALFORMED = "string data for inference input"
_NUM_ATTEMPTS = 10

Encode = Callable[[GetTensor], dict[str, Array]]


def load_encoder(parameters: Parameters, tokenizer: Tokenizer) -> Encode:
    """Return a function that converts a text model's inputs to inputs of `tensorrt_llm`.

    The function raises `InvalidRequest` if an input is invalid.
    """
    if parameters.flag("ask_preprocessing", False):
        model = parameters.text("preprocessing_model_name", "preprocessing")
        return partial(_encode, partial(_call_model, model))
    preprocessor = Preprocessor.of(parameters, tokenizer)
    return partial(_encode, preprocessor.encode)


def _encode(preprocess: Encode, get: GetTensor) -> dict[str, Array]:
    outputs = preprocess(lambda name: get(_INPUTS[name]))
    return {name: outputs[output] for output, name in _OUTPUTS.items() if output in outputs}


def _call_model(model: str, get: GetTensor) -> dict[str, Array]:
    tensors = {name: get(name) for name in _INPUTS}
    inputs = [pb_utils.Tensor(name, array) for name, array in tensors.items() if array is not None]
    for _ in range(_NUM_ATTEMPTS):
        response = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=list(_OUTPUTS), inputs=inputs
        ).exec()
        if not response.has_error():
            return {each.name(): each.as_numpy() for each in response.output_tensors()}
        if _MALFORMED not in response.error().message():
            break
    raise InvalidRequest(response.error().message())
