"""Answers of the fake Triton's models: functions that yield the responses to a request.

A response maps the names of outputs to their values. An answer ends early by raising `ModelError`,
`ServerError`, `ConnectionLost` or `Silence`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Outputs = dict[str, list[Any]]

# Output -> data type.
DATATYPES = {
    "text_output": "BYTES",
    "output_ids": "INT32",
    "sequence_length": "INT32",
    "INPUT_ID": "INT32",
    "REQUEST_INPUT_LEN": "INT32",
    "REQUEST_OUTPUT_LEN": "INT32",
    "OUTPUT": "BYTES",
    "sequence_index": "INT32",
    "batch_index": "INT32",
    "cum_log_probs": "FP32",
    "output_log_probs": "FP32",
    "num_input_tokens": "INT32",
    "num_output_tokens": "INT32",
    "kv_cache_alloc_new_blocks": "INT32",
    "kv_cache_reused_blocks": "INT32",
    "kv_cache_alloc_total_blocks": "INT32",
    "arrival_time_ns": "INT64",
    "first_scheduled_time_ns": "INT64",
    "first_token_time_ns": "INT64",
    "last_token_time_ns": "INT64",
}
# Inputs that are lists even with one value.
LISTS = ("input_ids", "stop_words", "bad_words", "TOKENS_BATCH", "SEQUENCE_LENGTH")
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
PERF = {
    "kv_cache_alloc_new_blocks": 3,
    "kv_cache_reused_blocks": 2,
    "kv_cache_alloc_total_blocks": 5,
    "arrival_time_ns": 10**18,
    "first_scheduled_time_ns": 10**18 + 1_200_000,
    "first_token_time_ns": 10**18 + 31_200_000,
    "last_token_time_ns": 10**18 + 231_200_000,
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a model.

    `inputs` have the format of Triton's generate endpoints: a tensor with one value is a scalar,
    except for `LISTS`. The tensors of a LoRA adapter are (data type, shape, bytes).
    """

    model: str
    inputs: dict[str, Any]
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    peer: str = ""
    allows_stream: bool = True

    @property
    def is_streamed(self) -> bool:
        requests_stream = self.inputs.get("stream") or self.inputs.get("streaming")
        return bool(self.allows_stream and requests_stream)


Answer = Callable[[Request], Iterator[Outputs]]


class ModelError(Exception):
    """The model fails the request."""


class ServerError(Exception):
    """Triton rejects the request before a model receives it; `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class ConnectionLost(Exception):
    """The connection ends as if the server had died."""


class Silence(Exception):
    """No response follows until the server stops."""


def follow_prompt(request: Request) -> Iterator[Outputs]:
    """Answer token ids with as many tokens as requested, and text depending on the prompt.

    `preprocessing` and `postprocessing` convert each character to its code point and back.
    `refuse` fails without a response, `break` after one; `vanish` drops the connection after one;
    `forever` streams until the client cancels; `silent` never responds; `beams` returns two
    sequences in one response; `nothing` ends without a response; `echo:TEXT` returns TEXT;
    `controls` returns escape sequences; any other prompt returns three pieces.
    """
    if "input_ids" in request.inputs:
        yield from exact_length(request)
        return
    if "QUERY" in request.inputs:
        yield preprocess(request.inputs["QUERY"], request.inputs["REQUEST_OUTPUT_LEN"])
        return
    if "TOKENS_BATCH" in request.inputs:
        yield postprocess(request.inputs["TOKENS_BATCH"], request.inputs["SEQUENCE_LENGTH"])
        return
    match request.inputs["text_input"]:
        case "refuse":
            raise ModelError("max_tokens must be at least 1")
        case "break":
            yield piece("on ")
            raise ModelError("the engine worker died")
        case "vanish":
            yield piece("on ")
            raise ConnectionLost
        case "forever":
            while True:
                yield piece("on ")
                time.sleep(0.01)
        case "silent":
            raise Silence
        case "beams":
            yield {
                "text_output": ["one", "two"],
                "cum_log_probs": [-1.0, -2.0],
                "output_log_probs": [-0.25, -0.75, -1.5, -0.5],
                "num_output_tokens": [4],
            }
        case "accumulate":
            for text in ("Ma", "Machine", "Machine learning"):
                yield piece(text)
        case "nothing":
            return
        case "controls":
            yield piece("a\x1b[2Jb\r\x9b\tc\n")
        case prompt if prompt.startswith("echo:"):
            yield piece(prompt.removeprefix("echo:"))
        case _:
            for word in ("Machine", " ", "learning é"):
                yield piece(word)


def preprocess(text: str, max_tokens: int) -> Outputs:
    """Return the response of `preprocessing`."""
    ids = [ord(character) for character in text]
    return {"INPUT_ID": ids, "REQUEST_INPUT_LEN": [len(ids)], "REQUEST_OUTPUT_LEN": [max_tokens]}


def postprocess(ids: list[int], lengths: list[int]) -> Outputs:
    """Return the response of `postprocessing` to sequences of equal padded length."""
    width = len(ids) // len(lengths)
    rows = [ids[at * width : at * width + length] for at, length in enumerate(lengths)]
    return {"OUTPUT": ["".join(map(chr, row)) for row in rows]}


def piece(text: str) -> Outputs:
    """Return upstream's outputs of one response, including placeholders."""
    return {
        "text_output": [text],
        "sequence_index": [0],
        "cum_log_probs": [-0.5],
        "output_log_probs": [-0.5],
        "num_input_tokens": [4],
        "num_output_tokens": [1],
        **{name: [value] for name, value in PERF.items()},
    }


def exact_length(request: Request, *, counts_tokens: bool = True) -> Iterator[Outputs]:
    """Answer with exactly as many tokens as requested, one per response when streamed.

    All tokens are zero, and each is a `word` in text.
    """
    is_text = "text_input" in request.inputs
    num_tokens = request.inputs["max_tokens" if is_text else "request_output_len"]
    sizes = [1] * num_tokens if request.is_streamed else [num_tokens]
    for size in sizes:
        yield words(size, counts_tokens=counts_tokens) if is_text else tokens(size)


def tokens(num_tokens: int) -> Outputs:
    """Return a response of `tensorrt_llm`."""
    return {"output_ids": [0] * num_tokens, "sequence_length": [num_tokens]}


def words(num_tokens: int, *, counts_tokens: bool = True) -> Outputs:
    """Return a response of a text model, with the number of its tokens if `counts_tokens`."""
    outputs: Outputs = {"text_output": ["word" * num_tokens]}
    return outputs | {"num_output_tokens": [num_tokens]} if counts_tokens else outputs
