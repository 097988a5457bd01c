"""Convert input tensors to generation requests, and generated sequences to output tensors.

All Python engine kinds use this module. The tensor names, types and shapes are the same as for
`tensorrt_llm` in NVIDIA's backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from ..engine import InvalidRequest
from ..lora.adapter_request import LORA_TENSORS
from .word_lists import Words, decode_words

Array = np.ndarray[Any, np.dtype[Any]]
GetTensor = Callable[[str], "Array | None"]

# Maps each tensor with one value per row to its `GenerationRequest` field and the function that
# converts the value.
_ENGINE_SCALARS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "request_output_len": ("max_new_tokens", int),
    "end_id": ("end_id", int),
    "beam_width": ("beam_width", int),
    "num_return_sequences": ("num_return_sequences", int),
    "temperature": ("temperature", float),
    "runtime_top_k": ("top_k", int),
    "runtime_top_p": ("top_p", float),
    "seed": ("seed", int),
    "repetition_penalty": ("repetition_penalty", float),
    "presence_penalty": ("presence_penalty", float),
    "frequency_penalty": ("frequency_penalty", float),
    "len_penalty": ("len_penalty", float),
    "early_stopping": ("early_stopping", bool),
    "beam_search_diversity_rate": ("beam_search_diversity_rate", float),
    "min_tokens": ("min_tokens", int),
    "return_log_probs": ("return_log_probs", bool),
    "return_perf_metrics": ("return_perf_metrics", bool),
    "guided_decoding_guide_type": (
        "guide_type",
        lambda value: as_text(value, "guided_decoding_guide_type") or None,
    ),
    # TensorRT-LLM 0.19 and earlier and the gpt layout use these names. `output_log_probs` is an
    # input only in the gpt layout.
    "random_seed": ("seed", int),
    "min_length": ("min_tokens", int),
    "output_log_probs": ("return_log_probs", bool),
    "guided_decoding_guide": ("guide", lambda value: as_text(value, "guided_decoding_guide")),
}
# Tensors with one value per row that the model reads itself instead of passing them to the engine.
_MODEL_SCALARS = (
    "exclude_input_in_output",
    "input_lengths",
    "pad_id",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
_WORDS = {"stop_words_list": "stop_words", "bad_words_list": "bad_words"}
# The tensor of logit biases, with one bias for each token in the vocabulary.
BIAS = "embedding_bias"
# The ids of requests from text models start with this prefix. The `tensorrt_llm` model does not
# check these requests for cancellation. Instead, the text model checks its client's request and
# stops the request to `tensorrt_llm` by id.
INTERNAL_ID_PREFIX = "tllm-text-"
_FAILED, _REJECTED = -1, -2
# Inputs for encoder-decoder models. Some clients always send these inputs, so ignore them.
_IGNORED = ("decoder_input_ids", "decoder_input_lengths")
SUPPORTED_INPUTS = frozenset(
    (
        *_ENGINE_SCALARS,
        *_MODEL_SCALARS,
        *_WORDS,
        *_IGNORED,
        *LORA_TENSORS,
        BIAS,
        "input_ids",
        "stop",
        "streaming",
    )
)


def as_text(value: Any, tensor: str) -> str:
    """Return a value of the string tensor `tensor` as text.

    Raise `InvalidRequest` if the value is not valid UTF-8.
    """
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{tensor} is not valid UTF-8 at byte {error.start}; send UTF-8 text"
        ) from error


class EngineRow(Protocol):
    """A row of a request, which the engine runs as one `GenerationRequest`."""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the `GenerationRequest`, except `id`."""


@dataclass(frozen=True, slots=True)
class RowRequest:
    """A row of a request and the options for its responses.

    `fields` contains the fields of the `GenerationRequest`, except `id`.
    """

    fields: dict[str, Any]
    batch_index: int
    pad_id: int
    exclude_input: bool
    returns_num_input_tokens: bool
    returns_num_output_tokens: bool

    @property
    def is_beam_search(self) -> bool:
        return bool(self.fields["beam_width"] > 1)


def parse_rows(get: GetTensor, *, exclude_input: bool) -> list[RowRequest]:
    """Return the rows of a request.

    `get` returns a request tensor by name. `exclude_input` is the model's default for
    `exclude_input_in_output`. Raise `InvalidRequest` with the tensor name if a required tensor is
    missing or a tensor is invalid.
    """
    input_ids = get("input_ids")
    if input_ids is None:
        raise InvalidRequest("input_ids is missing; send the prompt's token ids")
    if input_ids.ndim != 2:
        raise InvalidRequest(
            f"input_ids has shape {list(input_ids.shape)}; send a tensor of shape [rows, tokens]"
        )
    num_rows = len(input_ids)
    if num_rows == 0:
        raise InvalidRequest("input_ids has no rows; send at least one row")
    columns = {name: _column(get, name, num_rows) for name in (*_ENGINE_SCALARS, *_MODEL_SCALARS)}
    for name in ("input_lengths", "request_output_len"):
        if columns[name] is None:
            raise InvalidRequest(f"{name} is missing; send one number per row")
    lists: dict[str, list[Any]] = {
        field: _word_rows(get, name, num_rows) for name, field in _WORDS.items()
    }
    if (bias := get(BIAS)) is not None:
        lists["logit_bias"] = _bias_rows(bias, num_rows)
    return [
        _parse_row(
            row,
            input_ids[row],
            {name: column[row] for name, column in columns.items() if column is not None},
            {field: rows[row] for field, rows in lists.items()},
            exclude_input,
        )
        for row in range(num_rows)
    ]


def _parse_row(
    row: int,
    input_ids: Array,
    scalars: dict[str, Any],
    lists: dict[str, Any],
    exclude_input: bool,
) -> RowRequest:
    length = int(scalars["input_lengths"])
    if not 0 <= length <= len(input_ids):
        raise InvalidRequest(
            f"input_lengths is {length}; send a length from 0 to {len(input_ids)}, the number "
            "of tokens in input_ids"
        )
    fields: dict[str, Any] = {
        field: cast(scalars[name])
        for name, (field, cast) in _ENGINE_SCALARS.items()
        if name in scalars
    }
    fields.setdefault("beam_width", 1)
    # Like NVIDIA's backend, return all beams of a beam search by default.
    fields.setdefault("num_return_sequences", fields["beam_width"])
    fields.update(lists, input_ids=tuple(input_ids[:length].tolist()))
    end_id = fields.get("end_id", 0)
    return RowRequest(
        fields=fields,
        batch_index=row,
        pad_id=int(scalars.get("pad_id", max(end_id, 0))),
        exclude_input=bool(scalars.get("exclude_input_in_output", exclude_input)),
        returns_num_input_tokens=bool(scalars.get("return_num_input_tokens", False)),
        returns_num_output_tokens=bool(scalars.get("return_num_output_tokens", False)),
    )


@lru_cache(maxsize=1024)
def as_number(value: int) -> Array:
    """Return `value` as a read-only array with the shape [1, 1].

    Calls with equal values usually return the same object. A stream can then reuse the tensor of
    its previous response (see in_flight.py).
    """
    number = np.array([[value]], dtype=np.int32)
    number.flags.writeable = False
    return number


def pack_sequences(sequences: Sequence[Sequence[int]], pad_id: int) -> dict[str, Array]:
    """Return the output tensors with the token ids of one row's sequences.

    The row has n sequences, which are padded to the length of the longest one. `output_ids` has the
    shape [1, n, longest], and `sequence_length` has the shape [1, n].
    """
    lengths = [len(each) for each in sequences]
    longest = max(lengths, default=0)
    padded = [[*each, *(pad_id,) * (longest - len(each))] for each in sequences]
    return {
        "output_ids": np.array(padded, dtype=np.int32).reshape(1, len(sequences), longest),
        "sequence_length": as_number(lengths[0])
        if len(lengths) == 1
        else np.array([lengths], dtype=np.int32),
    }


def pack_log_probs(
    sequences: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]
) -> Array:
    """Return the log probabilities of the sequences' last tokens, with the shape [1, n, longest].

    The values for the tokens of the prompt and for the padding are zero.
    """
    longest = max((len(each) for each in sequences), default=0)
    padded = np.zeros((1, len(sequences), longest), dtype=np.float32)
    for index, (sequence, values) in enumerate(zip(sequences, log_probs, strict=True)):
        padded[0, index, len(sequence) - len(values) : len(sequence)] = values
    return padded


def pack_failure(why: str, *, was_rejected: bool) -> dict[str, Array]:
    """Return the tensors of a response that reports a failed or rejected request to a text model.

    A Triton error cannot report the failure, because after the first response to a BLS request,
    Triton 2.51 drops the error, or the caller waits forever (observed). A Triton error also cannot
    distinguish failures from rejections. The message is therefore encoded as token ids, one per
    byte. The sequence index is -1 for a failed request and -2 for a rejected request.
    """
    packed = pack_sequences([list(why.encode())], 0)
    index = _REJECTED if was_rejected else _FAILED
    return packed | {"sequence_index": as_number(index)}


def find_failure(outputs: Mapping[str, Array]) -> tuple[str, bool] | None:
    """Return the error message from `pack_failure`, and whether the request was rejected.

    Return None if `outputs` does not report a failure.
    """
    index = int(outputs["sequence_index"][0, 0]) if "sequence_index" in outputs else 0
    if index not in (_FAILED, _REJECTED):
        return None
    return bytes(outputs["output_ids"][0, 0].tolist()).decode(), index == _REJECTED


def _column(get: GetTensor, name: str, num_rows: int) -> Array | None:
    """Return an optional tensor as a vector with one value per row, or None if it is missing."""
    tensor = get(name)
    if tensor is None:
        return None
    if tensor.size != num_rows:
        raise InvalidRequest(
            f"{name} has shape {list(tensor.shape)}, but the number of rows is {num_rows}; send "
            "one value per row"
        )
    return tensor.reshape(num_rows)


def _bias_rows(tensor: Array, num_rows: int) -> list[tuple[tuple[int, float], ...]]:
    """Return each row's nonzero biases as pairs of a token id and its bias."""
    if tensor.ndim != 2 or len(tensor) != num_rows:
        raise InvalidRequest(
            f"{BIAS} has shape {list(tensor.shape)}; send a tensor of shape [rows, vocabulary]"
        )
    biased = [np.flatnonzero(row) for row in tensor]
    return [
        tuple(zip(ids.tolist(), row[ids].tolist(), strict=True))
        for ids, row in zip(biased, tensor, strict=True)
    ]


def _word_rows(get: GetTensor, name: str, num_rows: int) -> list[Words]:
    tensor = get(name)
    if tensor is None:
        return [()] * num_rows
    if tensor.ndim != 3 or len(tensor) != num_rows:
        raise InvalidRequest(
            f"{name} has shape {list(tensor.shape)}; send a tensor of shape [rows, 2, n]"
        )
    try:
        return [decode_words(row) for row in tensor]
    except ValueError as error:
        raise InvalidRequest(f"{name} is invalid: {error}") from error
