"""Send the prompts in a file concurrently and return the results in file order."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from trtllm_serve_cli.client.generate import LOGITS, Completion, GenerateRequest, RawTensor
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.client.transport.tensors import (
    RAW_TENSORS,
    WORD_LISTS,
    plan_inputs,
    plan_parameters,
)
from trtllm_serve_cli.errors import BadInput, TllmError

_FIELDS = frozenset(
    {field.name for field in dataclasses.fields(GenerateRequest)}
    - RAW_TENSORS
    - {"stream", "history", *(f"return_{name}" for name in LOGITS)}
    | {"lora_dir"}
)
_CANCEL_TIMEOUT_S = 2.0

Generate = Callable[[GenerateRequest, Cancellation], Completion]


def parse_batch(
    lines: Iterable[str], defaults: GenerateRequest, to_prompt: Callable[[str], str] = str
) -> Iterator[GenerateRequest | TllmError]:
    """Yield a request or an error for each line that is not blank.

    If the first of these lines is a JSON object or starts with `{"`, the file is parsed as JSONL.
    Each object contains the prompt as `prompt` or `text_input`. Its other fields are named after
    fields of `GenerateRequest` and override `defaults`, except `lora_dir`, which is the folder of a
    LoRA adapter. In any other file, each line is a prompt. `to_prompt` converts each prompt to the
    text to send, for example with the model's chat template.
    """
    is_jsonl: bool | None = None
    for number, line in enumerate(lines, start=1):
        text = line.strip("\r\n")
        if not text.strip():
            continue
        if is_jsonl is None:
            is_jsonl = _is_object(text)
        try:
            request = _parse_line(text, defaults) if is_jsonl else _with_prompt(defaults, text)
            plan_inputs(request)
            plan_parameters(request)
            request = _with_prompt(request, to_prompt(request.text_input))
        except TllmError as error:
            yield BadInput(f"Line {number}: {error.what}", why=error.why, next_step=error.next_step)
        else:
            yield request


def run_batch(
    generate: Generate, requests: Iterable[GenerateRequest | TllmError], num_in_flight: int = 4
) -> Generator[Completion | TllmError, None, None]:
    """Yield a completion or an error for each request, in the order of `requests`.

    `requests` is read lazily. Closing the iterator cancels the requests in flight by setting the
    `Cancellation` that `generate` receives. If `generate` raises an exception other than
    `TllmError`, the exception is propagated to the caller.
    """
    cancellation = Cancellation()
    running: deque[tuple[threading.Thread | None, Future[Completion | TllmError]]] = deque()
    try:
        for request in requests:
            if len(running) >= num_in_flight:
                yield running.popleft()[1].result()
            running.append(_start(generate, request, cancellation))
        while running:
            yield running.popleft()[1].result()
    finally:
        cancellation.set()
        for thread, _ in running:
            if thread is not None:
                thread.join(_CANCEL_TIMEOUT_S)


def _start(
    generate: Generate, request: GenerateRequest | TllmError, cancellation: Cancellation
) -> tuple[threading.Thread | None, Future[Completion | TllmError]]:
    future: Future[Completion | TllmError] = Future()
    if isinstance(request, TllmError):
        future.set_result(request)
        return None, future
    # Use a daemon thread, so that the command can exit even if the server hangs.
    thread = threading.Thread(
        target=_run, args=(generate, request, cancellation, future), daemon=True
    )
    thread.start()
    return thread, future


def _run(
    generate: Generate,
    request: GenerateRequest,
    cancellation: Cancellation,
    future: Future[Completion | TllmError],
) -> None:
    try:
        future.set_result(generate(request, cancellation))
    except TllmError as error:
        future.set_result(error)
    except BaseException as error:
        # Pass the exception to `run_batch`, which raises it. Otherwise, `run_batch` would wait for
        # the result forever.
        future.set_exception(error)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return text.lstrip().startswith('{"')


def _with_prompt(request: GenerateRequest, prompt: str) -> GenerateRequest:
    return dataclasses.replace(request, text_input=prompt)


def _parse_line(text: str, defaults: GenerateRequest) -> GenerateRequest:
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            "the line is not valid JSON.",
            why=str(error),
            next_step='write a line such as {"prompt": "…"}',
        ) from error
    if not isinstance(values, dict):
        raise BadInput(
            "the line is not a JSON object.",
            why="each line of a JSONL file must contain one request as an object",
            next_step='write a line such as {"prompt": "…"}',
        )
    if {"prompt", "text_input"} <= values.keys():
        raise BadInput(
            "the line contains two prompts.",
            why="prompt and text_input are two names of the same field",
            next_step="remove one of the two fields",
        )
    if "prompt" in values:
        values["text_input"] = values.pop("prompt")
    if values.get("text_input") in (None, ""):
        raise BadInput(
            "the line does not contain a prompt.",
            why="the prompt field, or text_input, is missing or empty",
            next_step='write a line such as {"prompt": "…"}',
        )
    if unknown := sorted(values.keys() - _FIELDS):
        raise BadInput(
            f"the request contains unknown fields: {', '.join(unknown)}.",
            why=f"the supported fields are prompt, {', '.join(sorted(_FIELDS))}",
            next_step="correct or remove the unknown fields",
        )
    for name in WORD_LISTS & values.keys():
        words = values[name]
        values[name] = (words,) if isinstance(words, str) else words
        if isinstance(words, list):
            values[name] = tuple(words)
    if isinstance(
        values.get("guided_decoding_guide"), dict
    ):  # a JSON schema written as an object instead of a string
        values["guided_decoding_guide"] = json.dumps(values["guided_decoding_guide"])
    # A null value selects the default, as if the key were missing.
    overrides = {name: value for name, value in values.items() if value is not None}
    if "lora_dir" in overrides:
        weights, config = _load_adapter(overrides.pop("lora_dir"))
        overrides |= {"lora_weights": weights, "lora_config": config}
    # Responses to requests with beam search or draft tokens cannot be streamed. Do not compare the
    # values with `>`, because `plan_inputs` has not yet checked that they are numbers.
    is_streamed = defaults.stream and overrides.get("beam_width", 1) == 1
    is_streamed = is_streamed and not overrides.get("num_draft_tokens")
    return dataclasses.replace(defaults, **overrides, stream=is_streamed)


def _load_adapter(folder: Any) -> tuple[RawTensor, RawTensor]:
    from trtllm_serve_cli.client.lora import load_adapter

    if not isinstance(folder, str):
        raise BadInput(
            f"lora_dir cannot be {folder!r}.",
            why="lora_dir must be a string that contains a path",
            next_step="set lora_dir to the path of an adapter folder",
        )
    return load_adapter(Path(folder))
