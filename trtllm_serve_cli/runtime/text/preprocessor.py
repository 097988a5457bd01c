"""Convert a request's text inputs to token ids, for `preprocessing` and the text models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import InvalidRequest
from ..triton.parameters import Parameters
from ..triton.tensors import Array, GetTensor, as_text
from ..triton.word_lists import encode_words
from .text_limits import check_prompt_lengths, check_word_lengths
from .tokenizer import Tokenizer, load_tokenizer

# Maps the inputs of `preprocessing` to the inputs of a text model.
PREPROCESSING_INPUTS = {
    "QUERY": "text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
}
# Maps the outputs of `preprocessing` to the inputs of `tensorrt_llm`.
PREPROCESSING_OUTPUTS = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "STOP_WORDS_IDS": "stop_words_list",
    "BAD_WORDS_IDS": "bad_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
TEXT_INPUTS = frozenset(PREPROCESSING_INPUTS.values())

Encode = Callable[[GetTensor], dict[str, Array]]


def encode_text(preprocess: Encode, get: GetTensor) -> dict[str, Array]:
    """Return the inputs of `tensorrt_llm` for the text inputs that `get` returns.

    `preprocess` converts the inputs of the `preprocessing` model to its outputs, and raises
    `InvalidRequest` if it cannot.
    """
    outputs = preprocess(lambda name: get(PREPROCESSING_INPUTS[name]))
    return {
        name: outputs[output] for output, name in PREPROCESSING_OUTPUTS.items() if output in outputs
    }


class Preprocessor:
    """An encoder that converts a request's text inputs to token ids.

    The input and output tensors have the same names as in the `preprocessing` model. `load` returns
    the tokenizer, and is called for the first text. `max_seq_len` is the model's context length in
    tokens, or 0 if it is unknown.
    """

    def __init__(
        self, load: Callable[[], Tokenizer], *, adds_special_tokens: bool, max_seq_len: int = 0
    ) -> None:
        self._load = load
        self._adds_special_tokens = adds_special_tokens
        self._max_seq_len = max_seq_len

    @classmethod
    def of(
        cls, parameters: Parameters, load: Callable[[], Tokenizer] | None = None
    ) -> Preprocessor:
        """Create a preprocessor from a model's parameters.

        By default, `load` loads the tokenizer from the folder in the `tokenizer_dir` parameter.
        Raise `ValueError` if a parameter is invalid.
        """
        return cls(
            load or partial(load_tokenizer, Path(parameters.text("tokenizer_dir"))),
            adds_special_tokens=parameters.flag("add_special_tokens", True),
            max_seq_len=parameters.number("max_seq_len", 0),
        )

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return self._load()

    def encode(self, get: GetTensor) -> dict[str, Array]:
        """Return the outputs of the `preprocessing` model for a request, keyed by name.

        `get` returns a request input by name. Raise `InvalidRequest` if a required input is missing
        or an input is invalid, and the errors of `load_tokenizer` if this call loads the tokenizer.
        """
        queries = get("QUERY")
        output_len = get("REQUEST_OUTPUT_LEN")
        if queries is None or output_len is None:
            raise InvalidRequest(
                "text_input (QUERY) and max_tokens (REQUEST_OUTPUT_LEN) are required; send both"
            )
        if not queries.size:
            raise InvalidRequest("text_input (QUERY) has no rows; send a prompt")
        prompts = [_as_prompt(row) for row in queries.reshape(len(queries), -1)[:, 0]]
        check_prompt_lengths("text_input (QUERY)", prompts, self._max_seq_len)
        adds_special_tokens = self._adds_special_tokens
        rows = [
            self._tokenizer.encode(each, add_special_tokens=adds_special_tokens) for each in prompts
        ]
        input_ids, lengths = _pad(rows, self._tokenizer.pad_id)
        bias = self._embedding_bias(get, len(rows))
        return bias | {
            "INPUT_ID": input_ids,
            "REQUEST_INPUT_LEN": lengths,
            # Encoder-decoder models require these two tensors. Decoder-only models ignore them.
            "DECODER_INPUT_ID": np.zeros((len(rows), 1), dtype=np.int32),
            "REQUEST_DECODER_INPUT_LEN": np.ones((len(rows), 1), dtype=np.int32),
            "STOP_WORDS_IDS": self._encode_word_lists(get, "STOP_WORDS_DICT", len(rows)),
            "BAD_WORDS_IDS": self._encode_word_lists(get, "BAD_WORDS_DICT", len(rows)),
            "REQUEST_OUTPUT_LEN": output_len,
            "OUT_END_ID": _or_default(get("END_ID"), self._tokenizer.end_id, len(rows)),
            "OUT_PAD_ID": _or_default(get("PAD_ID"), self._tokenizer.pad_id, len(rows)),
        }

    def _embedding_bias(self, get: GetTensor, num_rows: int) -> dict[str, Array]:
        """Return a mapping with the EMBEDDING_BIAS output, which has the shape [rows, vocabulary].

        The mapping is empty if the request contains neither words nor weights. Raise
        `InvalidRequest` if the request contains only one of the two, or if they are invalid.
        """
        words, weights = get("EMBEDDING_BIAS_WORDS"), get("EMBEDDING_BIAS_WEIGHTS")
        if words is None and weights is None:
            return {}
        if words is None or weights is None:
            missing = "words" if words is None else "weights"
            raise InvalidRequest(
                f"embedding_bias_{missing} is missing; send both embedding_bias_words and "
                "embedding_bias_weights"
            )
        if words.shape != weights.shape:
            raise InvalidRequest(
                f"embedding_bias_words has shape {list(words.shape)}, but embedding_bias_weights "
                f"has shape {list(weights.shape)}; send one weight for each word"
            )
        _check_num_rows("embedding_bias_words", words, num_rows)
        bias = np.zeros((num_rows, self._tokenizer.vocab_size), dtype=np.float32)
        texts = [[as_text(word, "embedding_bias_words") for word in row] for row in words]
        check_word_lengths("embedding_bias_words", texts)
        for row, values in enumerate(weights):
            for word, value in zip(texts[row], values, strict=True):
                # Like NVIDIA's model, add the weight to each token of the word.
                for token in self._tokenizer.encode(word, add_special_tokens=False):
                    bias[row, token] += value
        return {"EMBEDDING_BIAS": bias}

    def _encode_word_lists(self, get: GetTensor, tensor: str, num_rows: int) -> Array:
        words = get(tensor)
        if words is None:
            return encode_words([[]] * num_rows)
        # Start error messages with the text model's input name, for example stop_words.
        name = f"{tensor.removesuffix('_DICT').lower()} ({tensor})"
        # If the request has a single prompt, the tensor may have any shape.
        if num_rows > 1:
            _check_num_rows(name, words, num_rows)
        rows = [
            [text for text in (as_text(word, name) for word in row) if text]
            for row in words.reshape(num_rows, -1)
        ]
        check_word_lengths(name, rows)
        return encode_words(
            [
                [self._tokenizer.encode(text, add_special_tokens=False) for text in row]
                for row in rows
            ]
        )


def _check_num_rows(name: str, words: Array, num_rows: int) -> None:
    """Raise `InvalidRequest` if `words` does not have one row for each prompt.

    Triton checks the number of rows only for models with batching.
    """
    if len(words) != num_rows:
        raise InvalidRequest(
            f"{name} has {len(words)} rows, but the request has {num_rows} prompts; send a row "
            "for each prompt"
        )


def _as_prompt(value: Any) -> str:
    text = as_text(value, "text_input (QUERY)")
    if not text:
        raise InvalidRequest("text_input (QUERY) is empty; send a prompt")
    return text


def _pad(rows: list[list[int]], pad_id: int) -> tuple[Array, Array]:
    longest = max(len(row) for row in rows)
    padded = np.full((len(rows), longest), pad_id, dtype=np.int32)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded, np.array([[len(row)] for row in rows], dtype=np.int32)


def _or_default(values: Array | None, default: int, num_rows: int) -> Array:
    if values is not None:
        return values.astype(np.int32)
    return np.full((num_rows, 1), default, dtype=np.int32)
