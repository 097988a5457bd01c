"""Send the prompts in a file and print the responses as JSONL."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import typer

from trtllm_serve_cli.cli.infer import prompts, render_answer
from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED, USER_CAN_FIX
from trtllm_serve_cli.cli.shared.target import Target
from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from pathlib import Path

    from trtllm_serve_cli.client.generate import Completion, GenerateRequest


def check_usage(options: InferOptions) -> None:
    """Raise `BadParameter` if `--batch-inputs` cannot be combined with the other options."""
    problem = None
    if options.batch is None:
        problem = "--batch-inputs requires --batch. Add --batch FILE, or omit --batch-inputs."
    elif options.interface != "grpc":
        problem = f"--batch-inputs requires gRPC. Omit -i {options.interface}."
    elif options.no_server:
        problem = "--batch-inputs requires a server. Omit --no-server."
    if problem is not None:
        raise typer.BadParameter(problem, param_hint="--batch-inputs")


def infer_batch(
    target: Target, file: Path, defaults: GenerateRequest, to_prompt: Callable[[str], str]
) -> None:
    """Send one request for each prompt in `file` and print a line for each response or error.

    If a request fails, exit with code 3 after the last line.
    """
    from trtllm_serve_cli.client.ask import generate
    from trtllm_serve_cli.client.batch import parse_batch, run_batch
    from trtllm_serve_cli.client.transport.cancellation import Cancellation

    def send(request: GenerateRequest, cancellation: Cancellation) -> Completion:
        return generate(
            target.endpoint,
            target.model,
            target.complete(request),
            target.interface,
            target.timeout_s,
            cancellation,
            target.info,
        )

    num_failed = index = 0
    names: list[str] = []
    unnamed = dataclasses.replace(defaults, request_id="")
    requests = parse_batch(prompts.read_lines(file), unnamed, to_prompt)
    with closing(run_batch(send, _assign_ids(requests, defaults.request_id, names))) as arriving:
        try:
            for index, answer in enumerate(arriving):
                num_failed += isinstance(answer, TllmError)
                _print_line(index, names[index], answer)
        except KeyboardInterrupt:
            output.notify(
                render_answer.describe_cancel(target, defaults, "while requests were in flight")
            )
            raise typer.Exit(INTERRUPTED) from None
    if num_failed:
        output.notify(
            f'{num_failed} of {index + 1} lines failed. See the "error" field in the output.'
        )
        raise typer.Exit(USER_CAN_FIX)


def _assign_ids(
    requests: Iterable[GenerateRequest | TllmError], name: str, names: list[str]
) -> Iterator[GenerateRequest | TllmError]:
    """Yield the requests of a batch and append their ids to `names`.

    A request without an id receives an id that consists of `name` and the request's index. For an
    invalid line, yield an error and append an empty id.
    """
    for index, request in enumerate(requests):
        if isinstance(request, TllmError):
            names.append("")
            yield request
        else:
            names.append(request.request_id or f"{name}-{index}")
            yield dataclasses.replace(request, request_id=names[-1])


def infer_rows(
    target: Target, file: Path, defaults: GenerateRequest, to_prompt: Callable[[str], str]
) -> None:
    """Send all prompts in `file` in one request and print a line for each prompt.

    Raise `BadInput` if the file or a line is invalid, if the lines have different options, or if
    the model does not accept this number of prompts.
    """
    from trtllm_serve_cli.client.ask import stream_in_thread
    from trtllm_serve_cli.client.batch import parse_batch
    from trtllm_serve_cli.client.endpoint import Endpoint
    from trtllm_serve_cli.client.row_batch import (
        RowBatch,
        check_num_rows,
        merge_requests,
        summarize_rows,
    )

    assert isinstance(target.endpoint, Endpoint) and target.info is not None
    requests = merge_requests(parse_batch(prompts.read_lines(file), defaults, to_prompt))
    if not requests:
        return
    check_num_rows(target.info, len(requests))
    request = target.complete(requests[0])
    if target.info.accumulates_tokens:
        request = dataclasses.replace(request, stream=False)
    rows = RowBatch(target.endpoint, target.info, tuple(each.text_input for each in requests))
    started_s = time.monotonic()
    arriving = stream_in_thread(
        rows, target.model, request, target.interface, target.timeout_s, target.info
    )
    try:
        with closing(arriving):
            pieces = list(arriving)
    except KeyboardInterrupt:
        output.notify(
            render_answer.describe_cancel(target, request, "while the request was in flight")
        )
        raise typer.Exit(INTERRUPTED) from None
    for index, completion in enumerate(summarize_rows(pieces, len(requests), started_s)):
        _print_line(index, request.request_id, completion)


def _print_line(index: int, request_id: str, answer: Completion | TllmError) -> None:
    line = {"index": index, "request_id": request_id, **render_answer.as_data(answer)}
    output.show_json_line(line)
