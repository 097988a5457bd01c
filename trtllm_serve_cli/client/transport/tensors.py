"""Convert requests to tensors and responses to pieces, for both gRPC and HTTP."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from trtllm_serve_cli.client.generate import LOGITS, GenerateRequest, Piece, RawTensor
from trtllm_serve_cli.client.vllm import parse_log_probs
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.engine import PERF_OUTPUTS

Datatype = Literal["BYTES", "INT32", "UINT32", "UINT64", "FP32", "FP16", "BF16", "BOOL"]
Value = str | int | float | bool | tuple[str, ...] | RawTensor

INPUTS: Mapping[str, Datatype] = MappingProxyType(
    {
        "text_input": "BYTES",
        "max_tokens": "INT32",
        "stream": "BOOL",
        "temperature": "FP32",
        "top_k": "INT32",
        "top_p": "FP32",
        "seed": "UINT64",
        "beam_width": "INT32",
        "num_return_sequences": "INT32",
        "stop_words": "BYTES",
        "bad_words": "BYTES",
        "min_tokens": "INT32",
        "num_draft_tokens": "INT32",
        "use_draft_logits": "BOOL",
        "repetition_penalty": "FP32",
        "presence_penalty": "FP32",
        "frequency_penalty": "FP32",
        "length_penalty": "FP32",
        "guided_decoding_guide_type": "BYTES",
        "guided_decoding_guide": "BYTES",
        "lora_task_id": "UINT64",
        "lora_weights": "FP16",
        "lora_config": "INT32",
        "return_log_probs": "BOOL",
        "return_perf_metrics": "BOOL",
        "return_context_logits": "BOOL",
        "return_generation_logits": "BOOL",
        "exclude_input_in_output": "BOOL",
        "return_num_input_tokens": "BOOL",
        "return_num_output_tokens": "BOOL",
    }
)
# Flags that are sent even if they are false, because their default may be true in some models.
_ALWAYS_SENT = frozenset({"stream", "exclude_input_in_output"})
WORD_LISTS = frozenset({"stop_words", "bad_words"})
_LOG_PROBS = ("cum_log_probs", "cumulative_logprob", "output_log_probs")
RAW_TENSORS = frozenset({"lora_weights", "lora_config"})
_FORMATS = {
    "INT32": "<i",
    "UINT32": "<I",
    "INT64": "<q",
    "UINT64": "<Q",
    "FP32": "<f",
    "BOOL": "<?",
}
# Maps floating-point data types that NumPy supports to NumPy's names.
_FLOATS = {"FP16": "<f2", "FP32": "<f4"}
_RANGES = {"INT32": (-(2**31), 2**31 - 1), "UINT64": (0, 2**64 - 1)}
_LARGEST_FP32 = 3.4028234663852886e38


def plan_inputs(request: GenerateRequest) -> dict[str, Value]:
    """Return the tensor values to send, keyed by tensor name.

    Omit fields that are not set. Also omit false flags, except those in `_ALWAYS_SENT`, because
    older servers do not have some of these tensors. Raise `BadInput` if a value does not fit its
    tensor, or if `stop_after_ms` or `request_id` is not valid.
    """
    inputs: dict[str, Value] = {}
    for name, datatype in INPUTS.items():
        value = getattr(request, name)
        if value is None or value == () or (value is False and name not in _ALWAYS_SENT):
            continue
        _check(name, datatype, value)
        inputs[name] = value
    # `stop_after_ms` is not a tensor, but its value may also be invalid in a batch file.
    if request.stop_after_ms is not None:
        _check("stop_after_ms", "UINT64", request.stop_after_ms)
    _check("request_id", "BYTES", request.request_id)
    return inputs


def plan_parameters(request: GenerateRequest) -> dict[str, str]:
    """Return the request parameters to send. Raise `BadInput` if a value is invalid."""
    if request.lora_name is None:
        return {}
    _check("lora_name", "BYTES", request.lora_name)
    return {"lora_name": request.lora_name}


def _check(name: str, datatype: Datatype, value: Any) -> None:
    if problem := _find_problem(name, datatype, value):
        raise BadInput(
            f"{name} cannot be {value!r}.",
            why=f"{name} must be {problem}",
            next_step=f"correct the value of {name}",
        )


def _find_problem(name: str, datatype: Datatype, value: Any) -> str | None:
    """Return a description of the valid values, or None if the tensor accepts `value`."""
    if name in RAW_TENSORS:
        return None if isinstance(value, RawTensor) else "a tensor"
    match datatype:
        case "BYTES" if name in WORD_LISTS:
            ok = isinstance(value, tuple) and all(_is_text(word) for word in value)
            return None if ok else "a list of valid UTF-8 strings"
        case "BYTES":
            return None if _is_text(value) else "a valid UTF-8 string"
        case "BOOL":
            return None if isinstance(value, bool) else "true or false"
        case "FP32":
            ok = isinstance(value, int | float) and not isinstance(value, bool)
            ok = ok and math.isfinite(value) and abs(value) <= _LARGEST_FP32
            return None if ok else "a finite number (FP32)"
        case _:
            low, high = _RANGES[datatype]
            ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
            return None if ok else f"a whole number from {low} to {high} ({datatype})"


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # a surrogate from an argument that was not valid UTF-8
        return False


def encode_raw(datatype: Datatype, value: Value) -> tuple[list[int], bytes]:
    """Return the shape and the raw content of an input for gRPC. The batch dimension is 1."""
    if isinstance(value, RawTensor):
        return list(value.shape), value.content
    if datatype == "BYTES":
        words = [value] if isinstance(value, str) else list(value)  # type: ignore[arg-type]
        encoded = [str(word).encode() for word in words]
        return [1, len(words)], b"".join(struct.pack("<I", len(w)) + w for w in encoded)
    return [1, 1], struct.pack(_FORMATS[datatype], value)


def encode_rows(datatype: Datatype, values: Sequence[Value]) -> tuple[list[int], bytes]:
    """Return the shape and the raw content of an input with one row per value.

    All values must have the same shape.
    """
    encoded = [encode_raw(datatype, value) for value in values]
    return [len(encoded), *encoded[0][0][1:]], b"".join(content for _, content in encoded)


def split_rows(
    outputs: Mapping[str, Sequence[Any]], num_rows: int
) -> list[tuple[int, dict[str, Sequence[Any]]]]:
    """Return the index and the outputs of each row in a response to a request with `num_rows` rows.

    `outputs` maps tensor names to flat lists. A response from a decoupled model has one row. A
    model that is not decoupled sends all rows in one response. In the gpt layout, that response has
    no indices, but each row has the same number of texts. Raise `ValueError` if the rows cannot be
    identified.
    """
    num_texts = len(outputs.get("text_output", ()))
    has_all_rows = "batch_index" not in outputs and num_texts > 0 and num_texts % num_rows == 0
    indices = range(num_rows) if has_all_rows else outputs.get("batch_index", ())
    if not indices or not all(0 <= index < num_rows for index in indices):
        raise ValueError(
            f"the batch_index output is {list(indices)}, but the request has {num_rows} rows"
        )
    widths = {name: len(values) // len(indices) for name, values in outputs.items()}
    return [
        (index, {name: outputs[name][at * n : (at + 1) * n] for name, n in widths.items()})
        for at, index in enumerate(indices)
    ]


def decode_raw(datatype: str, content: bytes) -> list[Any]:
    """Return the elements of an output as a flat list.

    The list is empty for data types that text models do not use. Bytes that are not valid UTF-8
    become replacement characters. Raise `struct.error` if the content is truncated.
    """
    if datatype == "BYTES":
        return _decode_strings(content)
    if datatype not in _FORMATS:
        return []
    return [value for (value,) in struct.iter_unpack(_FORMATS[datatype], content)]


def decode_array(datatype: str, shape: Sequence[int], content: bytes) -> Any:
    """Return a floating-point output as a float32 or float16 array of the given shape.

    BF16 is converted to float32, because NumPy does not support BF16. Raise `ValueError` if
    `datatype` is not FP16, FP32 or BF16, or if the size of the content does not match the shape.
    """
    import numpy as np  # importing NumPy takes 0.1 s, and only logits need it

    if datatype == "BF16":
        values = (np.frombuffer(content, "<u2").astype(np.uint32) << 16).view(np.float32)
    elif datatype in _FLOATS:
        values = np.frombuffer(content, _FLOATS[datatype])
    else:
        raise ValueError(f"the data type is {datatype} instead of FP16, FP32 or BF16")
    return values.reshape(tuple(shape))


def _decode_strings(content: bytes) -> list[str]:
    strings = []
    at = 0
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        (raw,) = struct.unpack_from(f"{length}s", content, at + 4)
        strings.append(raw.decode(errors="replace"))
        at += 4 + length
    return strings


def parse_pieces(
    request: GenerateRequest,
    outputs: Mapping[str, Sequence[Any]],
    at_s: float,
    *,
    returns_prompt: bool = False,
) -> list[Piece]:
    """Return one piece for each text in a response.

    `outputs` maps tensor names to flat lists. Outputs that were not requested are ignored, because
    models fill these outputs with placeholders. If `returns_prompt` is set, a prompt at the
    beginning of a text is removed. Raise `ValueError` if an output is invalid.
    """
    try:
        return _parse_pieces(request, outputs, at_s, returns_prompt)
    except (AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _parse_pieces(
    request: GenerateRequest,
    outputs: Mapping[str, Sequence[Any]],
    at_s: float,
    returns_prompt: bool,
) -> list[Piece]:
    texts = outputs.get("text_output", ())
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("text_output contains a value that is not a string")
    _check_numbers(request, outputs)
    if returns_prompt:
        texts = [text.removeprefix(request.text_input) for text in texts]
    has_log_probs = request.return_log_probs
    cum_log_probs = outputs.get("cum_log_probs", outputs.get("cumulative_logprob", ()))
    log_probs = _read_log_probs(outputs, len(texts))
    num_input = _first(outputs, "num_input_tokens") if request.return_num_input_tokens else None
    counts = outputs.get("num_output_tokens")
    num_output = sum(counts) if counts and request.return_num_output_tokens else None
    base = (_first(outputs, "sequence_index") or 0) * len(texts)
    perf = {name: outputs[name][0] for name in PERF_OUTPUTS if outputs.get(name)}
    # Models send "None" for a sequence that has not ended.
    reasons = [None if each == "None" else each for each in outputs.get("finish_reason", ())]
    logits = {
        name: outputs[name][0]
        for name in LOGITS
        if getattr(request, f"return_{name}") and name in outputs
    }
    return [
        Piece(
            text=text,
            at_s=at_s,
            sequence_index=base + index,
            num_input_tokens=num_input if index == 0 else None,
            num_output_tokens=num_output if index == 0 else None,
            cum_log_prob=cum_log_probs[index]
            if has_log_probs and index < len(cum_log_probs)
            else None,
            output_log_probs=log_probs[index] if has_log_probs else (),
            perf=perf if request.return_perf_metrics and index == 0 else {},
            logits=logits if index == 0 else {},
            finish_reason=reasons[index] if index < len(reasons) else None,
        )
        for index, text in enumerate(texts)
    ]


def _check_numbers(request: GenerateRequest, outputs: Mapping[str, Sequence[Any]]) -> None:
    """Raise `TypeError` if a requested output contains a value that is not a number."""
    requested = (
        *(_LOG_PROBS if request.return_log_probs else ()),
        *(PERF_OUTPUTS if request.return_perf_metrics else ()),
        *(("num_input_tokens",) if request.return_num_input_tokens else ()),
    )
    for name in requested:
        if not all(isinstance(value, int | float) for value in outputs.get(name, ())):
            raise TypeError(f"{name} contains a value that is not a number")


def _read_log_probs(
    outputs: Mapping[str, Sequence[Any]], num_texts: int
) -> Sequence[tuple[float, ...]]:
    """Return the log probabilities of the tokens in each text, as one tuple per text."""
    if "logprobs" in outputs:
        return parse_log_probs(outputs["logprobs"])
    log_probs = outputs.get("output_log_probs", ())
    width = len(log_probs) // num_texts if num_texts else 0
    return [tuple(log_probs[text * width : (text + 1) * width]) for text in range(num_texts)]


def _first(outputs: Mapping[str, Sequence[Any]], name: str) -> Any:
    values = outputs.get(name)
    return values[0] if values else None
