"""Wrong requests as data: each breaks one thing of a valid request.

`plan_wrong_requests` draws them from upstream's tensors, which includes tensors that are added to
the contract later. Wrong values come from tables.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.runtime.engines.capabilities import FEATURES
from trtllm_serve_cli.runtime.engines.kinds import find_kind

CORE, TEXT_MODELS = "tensorrt_llm", ("ensemble", "tensorrt_llm_bls")
OUTPUT_LEN = 3
# The numbers one to eight: no near ties, which rounding in another batch size could reverse.
PROMPT = [33, 216, 34, 216, 35, 216, 36, 216, 37, 216, 38, 216, 39, 216, 40]


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it is sent over the network."""

    datatype: str
    shape: tuple[int, ...]
    content: bytes


@dataclass(frozen=True, slots=True)
class WrongRequest:
    """A request, its mistake, and the tensors of which the error must name one."""

    model: str
    tensors: dict[str, RawTensor]
    what: str
    names: tuple[str, ...]
    request_id: str = ""
    parameters: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.model}: {self.what}"


def numbers(datatype: str, values: Any) -> RawTensor:
    """Return a tensor of numbers or flags."""
    array = np.asarray(values).astype(_NUMPY[datatype])
    return RawTensor(datatype, array.shape, array.tobytes())


def texts(rows: Sequence[Sequence[bytes]]) -> RawTensor:
    """Return a tensor of strings."""
    content = b"".join(struct.pack("<I", len(text)) + text for row in rows for text in row)
    return RawTensor("BYTES", (len(rows), len(rows[0])), content)


def plain_tensors(model: str) -> dict[str, RawTensor]:
    """Return the tensors that `model` requires."""
    match model:
        case "tensorrt_llm":
            return {
                "input_ids": numbers("INT32", [PROMPT]),
                "input_lengths": numbers("INT32", [[len(PROMPT)]]),
                "request_output_len": numbers("INT32", [[OUTPUT_LEN]]),
            }
        case "preprocessing":
            return {
                "QUERY": texts([[b"1 2 3 4 5 6 7 8"]]),
                "REQUEST_OUTPUT_LEN": numbers("INT32", [[OUTPUT_LEN]]),
            }
        case "postprocessing":
            return {
                "TOKENS_BATCH": numbers("INT32", [[[504, 2115, 476]]]),
                "SEQUENCE_LENGTH": numbers("INT32", [[3]]),
            }
        case _:
            return {
                "text_input": texts([[b"1 2 3 4 5 6 7 8"]]),
                "max_tokens": numbers("INT32", [[OUTPUT_LEN]]),
            }


def plan_wrong_requests(number: int, seed: int) -> list[WrongRequest]:
    """Return wrong requests in a random order, each kind at least once if `number` permits."""
    every = [*_wrong_forms(), *_wrong_values(), *_wrong_pairs()]
    rng = random.Random(seed)
    repeated = every * (number // len(every)) + rng.sample(every, number % len(every))
    rng.shuffle(repeated)
    return repeated


_NUMPY: dict[str, Any] = {
    "BOOL": np.bool_,
    "FP16": np.float16,
    "FP32": np.float32,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT64": np.uint64,
}
_TRITON_NAMES = {"TYPE_STRING": "BYTES"}
_INT32_MAX = 2**31 - 1
_NAN, _INF = math.nan, math.inf
# Name of a tensor in `tensorrt_llm` -> its datatype and values that are out of range. Some have
# another name in the text models.
_OUT_OF_RANGE: dict[str, tuple[str, tuple[float, ...]]] = {
    "request_output_len": ("INT32", (0, -1, -_INT32_MAX - 1, _INT32_MAX, 8192)),
    "beam_width": ("INT32", (0, -1, 99, _INT32_MAX)),
    "num_return_sequences": ("INT32", (0, -1, 129, _INT32_MAX)),
    "temperature": ("FP32", (-1.0, _NAN, _INF, -_INF, 1e30)),
    "runtime_top_k": ("INT32", (-1, -_INT32_MAX - 1, _INT32_MAX)),
    "runtime_top_p": ("FP32", (-0.1, 1.5, _NAN, _INF)),
    "repetition_penalty": ("FP32", (0.0, -1.0, _NAN, _INF, 1e30)),
    "presence_penalty": ("FP32", (-3.0, 2.5, _NAN, -_INF)),
    "frequency_penalty": ("FP32", (-3.0, 2.5, _NAN, _INF)),
    "len_penalty": ("FP32", (_NAN, _INF, -1e30)),
    "beam_search_diversity_rate": ("FP32", (-1.0, _NAN, _INF)),
    "min_tokens": ("INT32", (-1, OUTPUT_LEN + 1, _INT32_MAX)),
    "lora_task_id": ("UINT64", (0, 12345, 2**64 - 1)),
}
_IN_TEXT_MODELS = {
    "request_output_len": "max_tokens",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "len_penalty": "length_penalty",
}
_INVALID_UTF8 = b"\xff\xfe\x80"
_NUMBER_SCHEMA = b'{"type": "number"}'


def _wrong_forms() -> Iterable[WrongRequest]:
    """Yield mistakes of any tensor: missing, or of a wrong type, rank, number of rows or size."""
    for model in (CORE, *TEXT_MODELS, "preprocessing", "postprocessing"):
        base = plain_tensors(model)
        for tensor in load_contracts()[model].inputs:
            datatype = _TRITON_NAMES.get(tensor.type, tensor.type.removeprefix("TYPE_"))
            shape = (1, *(1 if dim == -1 else dim for dim in tensor.dims))
            sent = _valid_tensor(datatype, shape)
            # Triton's error for a missing tensor has its name or the number of tensors.
            if tensor.name in base and model != CORE:
                remaining = {name: each for name, each in base.items() if name != tensor.name}
                yield WrongRequest(model, remaining, f"{tensor.name} is left out", (tensor.name,))
            other = "FP64" if datatype != "FP64" else "INT32"
            changes = {
                "has another type": replace(sent, datatype=other, content=bytes(8 * _size(shape))),
                "has a rank more": replace(sent, shape=(*shape, 1)),
                "has two rows": _valid_tensor(datatype, (2, *shape[1:])),
                "is cut short": replace(sent, content=sent.content[:-1]),
                "is empty": replace(sent, content=b""),
                "has no rows": replace(sent, shape=(0, *shape[1:]), content=b""),
                "has a negative dimension": replace(sent, shape=(*shape[:-1], -1)),
            }
            if tensor.dims == (1,):
                changes["has two columns"] = _valid_tensor(datatype, (1, 2))
            if datatype == "BYTES":
                changes["lies about its length"] = replace(sent, content=b"\xff\xff\xff\x7fx")
            if datatype == "BYTES" and model == "preprocessing":
                # Triton fails the whole batch of such a request (clients retry), but still counts
                # it as in flight and stops 30 s late.
                for what in ("is cut short", "is empty", "lies about its length"):
                    del changes[what]
            for what, changed in changes.items():
                # If the numbers of rows differ, Triton names another tensor.
                names = (*base, tensor.name) if "rows" in what else (tensor.name,)
                yield WrongRequest(
                    model, {**base, tensor.name: changed}, f"{tensor.name} {what}", names
                )
        yield WrongRequest(
            model, {**base, "nonsense": numbers("INT32", [[1]])}, "an unknown tensor", ("nonsense",)
        )
    for left_out in plain_tensors(CORE):
        remaining = {name: each for name, each in plain_tensors(CORE).items() if name != left_out}
        yield WrongRequest(CORE, remaining, f"{left_out} is left out", (left_out,))


def _wrong_values() -> Iterable[WrongRequest]:
    for tensor, (datatype, values) in _OUT_OF_RANGE.items():
        for value in values:
            what = f"{tensor} is {value}"
            yield _core(what, (tensor,), **{tensor: numbers(datatype, [[value]])})
            in_text = _IN_TEXT_MODELS.get(tensor, tensor)
            for model in TEXT_MODELS:
                if in_text in {each.name for each in load_contracts()[model].inputs}:
                    yield _text(model, what, (in_text,), **{in_text: numbers(datatype, [[value]])})
    for model in (CORE, *TEXT_MODELS):
        for tensor in load_contracts()[model].inputs:
            if tensor.name in _NOT_SERVED:
                datatype = _TRITON_NAMES.get(tensor.type, tensor.type.removeprefix("TYPE_"))
                shape = (1, *(1 if dim == -1 else dim for dim in tensor.dims))
                sent = _valid_tensor(datatype, shape)
                tensors = {**plain_tensors(model), tensor.name: sent}
                # The two bias tensors are one tensor in `tensorrt_llm`.
                names = (tensor.name, "embedding_bias") if "bias" in tensor.name else (tensor.name,)
                yield WrongRequest(model, tensors, f"{tensor.name} is not served", names)
    yield from _wrong_words()
    yield from _wrong_texts()
    yield from _wrong_guides()
    for tokens, lengths in (
        ([[[-1, 2, 3]]], [[3]]),
        ([[[1, 2, 3]]], [[4]]),
        ([[[1, 2, 3]]], [[_INT32_MAX]]),
        ([[[1, 2, 3]]], [[1, 1]]),
    ):
        sent = {
            "TOKENS_BATCH": numbers("INT32", tokens),
            "SEQUENCE_LENGTH": numbers("INT32", lengths),
        }
        what = f"tokens {tokens} of lengths {lengths}"
        yield WrongRequest("postprocessing", sent, what, ("TOKENS_BATCH", "SEQUENCE_LENGTH"))


def _wrong_words() -> Iterable[WrongRequest]:
    for tensor in ("stop_words_list", "bad_words_list"):
        for ids, ends in (
            ([1, 2], [2, 1]),
            ([1, 2], [0, -1]),
            ([1, 2], [3, -1]),
            ([1, 2], [-2, -1]),
            ([1, 2], [_INT32_MAX, _INT32_MAX]),
            ([-1, 2], [2, -1]),
            ([_INT32_MAX, 2], [1, 2]),
            ([5] * 5000, [5000] + [-1] * 4999),
        ):
            what = f"{tensor} has the ends {ends[:2]} of {ids[:2]}"
            yield _core(what, (tensor,), **{tensor: numbers("INT32", [[ids, ends]])})
    rng = random.Random(0)
    odd = [rng.randrange(20, 40_000) for _ in range(480)]
    ends = [*range(8, 481, 8), *[-1] * 420]
    yield _core(
        "bad_words_list takes too long",
        ("bad_words_list",),
        bad_words_list=numbers("INT32", [[odd, ends]]),
    )


def _wrong_texts() -> Iterable[WrongRequest]:
    for model in TEXT_MODELS:
        for tensor in ("text_input", "stop_words", "bad_words"):
            yield _text(
                model, f"{tensor} is not UTF-8", (tensor,), **{tensor: texts([[_INVALID_UTF8]])}
            )
        yield _text(model, "text_input is empty", ("text_input",), text_input=texts([[b""]]))
        long = texts([[b"word " * 9000]])
        yield _text(model, "text_input is too long", ("max_seq_len",), text_input=long)
        nul = texts([[b"a\0b"]])
        yield _text(model, "bad_words has a NUL", ("bad_words",), bad_words=nul)
    for tensor in ("QUERY", "STOP_WORDS_DICT", "BAD_WORDS_DICT"):
        tensors = {**plain_tensors("preprocessing"), tensor: texts([[_INVALID_UTF8]])}
        yield WrongRequest("preprocessing", tensors, f"{tensor} is not UTF-8", (tensor,))


def _wrong_guides() -> Iterable[WrongRequest]:
    kind, guide = "guided_decoding_guide_type", "guided_decoding_guide"
    for make in _makers():
        yield make("an unknown guide type", (kind,), **{kind: texts([[b"yaml"]])})
        yield make("a guide type not UTF-8", (kind,), **{kind: texts([[_INVALID_UTF8]])})
        yield make("a guide without its type", (kind,), **{guide: texts([[_NUMBER_SCHEMA]])})
        for name, text in (
            (b"json_schema", b""),
            (b"json_schema", b"{"),
            (b"json_schema", b"[1]"),
            (b"json_schema", b"false"),
            (b"json_schema", b'{"$ref": "#/gone"}'),
            (b"json_schema", b'{"type": "string", "pattern": "["}'),
            (b"json_schema", b'{"type": "array", "minItems": 3, "maxItems": 1}'),
            (b"json_schema", b"[" * 60_000),
            (b"json_schema", b"x" * 70_000),
            (b"json_schema", _INVALID_UTF8),
            (b"regex", b""),
            (b"regex", b"("),
            (b"regex", b"(?=a)b"),
            (b"regex", b"a\0b"),
            (b"ebnf_grammar", b"root ::= missing"),
            (b"ebnf_grammar", b'other ::= "a"'),
            (b"structural_tag", b'{"type": "structural_tag"}'),
        ):
            what = f"the {name.decode()} {text[:20]!r}"
            yield make(what, (guide,), **{kind: texts([[name]]), guide: texts([[text]])})


def _wrong_pairs() -> Iterable[WrongRequest]:
    """Yield combinations of tensors that contradict each other."""
    for length in (-1, len(PROMPT) + 1, _INT32_MAX, -_INT32_MAX - 1):
        what = f"input_lengths is {length}"
        yield _core(what, ("input_lengths",), input_lengths=numbers("INT32", [[length]]))
    yield _core("input_lengths is 0", ("input_ids",), input_lengths=numbers("INT32", [[0]]))
    for token in (-1, -_INT32_MAX - 1):
        what = f"input_ids holds {token}"
        yield _core(what, ("input_ids",), input_ids=numbers("INT32", [[token, *PROMPT[1:]]]))
    yield _core("no input_ids", ("input_ids",), input_ids=RawTensor("INT32", (1, 0), b""))
    words = numbers("INT32", [[[5], [1]]])
    three, two = numbers("INT32", [[3]]), numbers("INT32", [[2]])
    guided = {
        "guided_decoding_guide_type": texts([[b"json"]]),
        "bad_words_list": words,
    }
    yield _core("a guide and bad words", ("bad_words_list",), **guided)
    yield _core(
        "more sequences than beams",
        ("num_return_sequences",),
        beam_width=two,
        num_return_sequences=three,
    )
    for tensor in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        penalty = {tensor: numbers("FP32", [[1.5]])}
        yield _core(f"{tensor} and beams", (tensor,), beam_width=two, **penalty)
    for request_id in ("", "unknown"):
        yield replace(
            _core("a stop of an unknown request", ("stop",), stop=numbers("BOOL", [[True]])),
            request_id=request_id,
        )
    for make in _makers():
        yield from _wrong_adapters(make)


def _wrong_adapters(make: Callable[..., WrongRequest]) -> Iterable[WrongRequest]:
    task, weights, config = "lora_task_id", "lora_weights", "lora_config"
    number = numbers("UINT64", [[77]])
    short, one = numbers("FP16", [[[1.0, 2.0]]]), numbers("INT32", [[[1, 0, 8]]])
    yield make("weights without a config", (config,), **{task: number, weights: short})
    yield make("a config without weights", (weights,), **{task: number, config: one})
    yield make("weights without a task", (task,), **{weights: short, config: one})
    for rows in ([[1, 0, 8]], [[1, 0, 0]], [[1, 0, -1]], [[1, 99, 8]], [[99, 0, 8]], [[1, -1, 1]],
                 [[1, 0, _INT32_MAX]], [[1, 0, 1], [1, 0, 1]]):  # fmt: skip
        changed = numbers("INT32", [rows])
        sent = {task: number, weights: short, config: changed}
        yield make(f"the adapter {rows}", (weights, config), **sent)
    empty = RawTensor("INT32", (1, 0, 3), b"")
    yield make("an empty adapter", (config,), **{task: number, weights: short, config: empty})
    wrong = make("an unknown adapter's name", ("lora_name",))
    yield replace(wrong, parameters=(("lora_name", "unknown"),))
    yield replace(make("an empty adapter's name", ("lora_name",)), parameters=(("lora_name", ""),))
    yield replace(
        make("an adapter's name and a task id", ("lora_name",), **{task: number}),
        parameters=(("lora_name", "unknown"),),
    )


def _core(what: str, names: tuple[str, ...], **changed: RawTensor) -> WrongRequest:
    return WrongRequest(CORE, {**plain_tensors(CORE), **changed}, what, names)


def _text(model: str, what: str, names: tuple[str, ...], **changed: RawTensor) -> WrongRequest:
    return WrongRequest(model, {**plain_tensors(model), **changed}, what, names)


def _makers() -> tuple[Callable[..., WrongRequest], ...]:
    def of(model: str) -> Callable[..., WrongRequest]:
        return lambda what, names, **changed: _text(model, what, names, **changed)

    return _core, *map(of, TEXT_MODELS)


def _size(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _valid_tensor(datatype: str, shape: tuple[int, ...]) -> RawTensor:
    """Return a tensor of this type and shape with valid content that is not zero."""
    if datatype == "BYTES":
        return RawTensor(datatype, shape, (struct.pack("<I", 1) + b"x") * _size(shape))
    return numbers(datatype, np.ones(shape))


_NOT_SERVED = {
    tensor
    for feature in FEATURES
    if feature in find_kind("openvino").capabilities.unsupported
    for tensor in feature.tensors
}


def as_json(wrong: WrongRequest) -> str | None:
    """Return the same request as a body of `/generate`, or `None` if JSON cannot represent it."""
    known = {each.name for each in load_contracts()[wrong.model].inputs}
    body = {name: _as_value(sent) for name, sent in wrong.tensors.items()}
    # `/generate` treats an unknown name as a request parameter.
    if None in body.values() or wrong.request_id or not known.issuperset(body):
        return None
    return json.dumps(body | dict(wrong.parameters))


def _as_value(sent: RawTensor) -> Any:
    """Return the only value of a tensor, or `None` if JSON cannot represent it."""
    if sent.shape != (1, 1):
        return None
    if sent.datatype == "BYTES":
        text = sent.content[4:]
        is_whole = sent.content[:4] == struct.pack("<I", len(text))
        return text.decode() if is_whole and text.isascii() else None
    size = np.dtype(_NUMPY.get(sent.datatype, np.float64)).itemsize
    if sent.datatype not in _NUMPY or len(sent.content) != size:
        return None
    (value,) = np.frombuffer(sent.content, _NUMPY[sent.datatype])
    return value.item() if np.isfinite(value) else None
