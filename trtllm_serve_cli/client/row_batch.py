"""Send several prompts in one request, with one row of each tensor per prompt.

NVIDIA's end_to_end_grpc_client.py does the same with `--batch-inputs` (tag v0.19.0 of
triton-inference-server/tensorrtllm_backend). Each response from a decoupled model contains the
index of its row in `batch_index`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import Completion, GenerateRequest, Piece, summarize_pieces
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.errors import BadInput, TllmError


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A source of responses to `prompts`, which are sent to a text model in a single request.

    The request has one row per prompt.
    """

    endpoint: Endpoint
    info: ModelInfo
    prompts: tuple[str, ...]

    def stream(
        self, request: GenerateRequest, timeout_s: float | None, cancellation: Cancellation
    ) -> Generator[Piece, None, None]:
        """Yield the pieces of all rows as they arrive.

        The rows contain the prompts of the batch, so the prompt of `request` is ignored. Raise the
        same exceptions as `client.ask.stream`.
        """
        from trtllm_serve_cli.client.transport.over_grpc import stream_rows

        return stream_rows(self.endpoint, self.info, request, self.prompts, timeout_s, cancellation)


def merge_requests(requests: Iterable[GenerateRequest | TllmError]) -> list[GenerateRequest]:
    """Check that the requests differ only in their prompts and return them.

    Raise the first error in `requests`, or `BadInput` if another field differs.
    """
    merged: list[GenerateRequest] = []
    for request in requests:
        if isinstance(request, TllmError):
            raise request
        if merged and (fields := _find_differences(merged[0], request)):
            raise BadInput(
                f"Request {len(merged) + 1} in the file cannot be sent together with request 1.",
                why="with --batch-inputs, requests must differ only in their prompts, but these "
                f"requests also differ in {' and '.join(fields)}",
                next_step="use the same values in all lines, or omit --batch-inputs",
            )
        merged.append(request)
    return merged


def _find_differences(first: GenerateRequest, other: GenerateRequest) -> list[str]:
    names = [field.name for field in dataclasses.fields(GenerateRequest)]
    names.remove("text_input")
    return [name for name in names if getattr(first, name) != getattr(other, name)]


def check_num_rows(info: ModelInfo, num_rows: int) -> None:
    """Raise `BadInput` if the model does not accept `num_rows` prompts in one request."""
    if num_rows <= max(info.max_batch_size, 1):
        return
    if info.max_batch_size == 0:
        raise BadInput(
            f"{info.name} accepts only one prompt per request, but the file has {num_rows}.",
            why="the model's configuration disables batching (max_batch_size is 0)",
            next_step="omit --batch-inputs to send one request per prompt",
        )
    raise BadInput(
        f"{info.name} accepts at most {info.max_batch_size} prompts per request, but the file has "
        f"{num_rows}.",
        why=f"max_batch_size is {info.max_batch_size} in the model's configuration",
        next_step="omit --batch-inputs, split the file, or increase triton_max_batch_size with "
        "`tllm set`",
    )


def summarize_rows(pieces: Sequence[Piece], num_rows: int, started_s: float) -> list[Completion]:
    """Combine the pieces of a batch into one completion per row.

    A row's latency is measured until its last piece arrives. If `stop_after_ms` ended the batch, a
    single piece reports the end of all rows.
    """
    completions = []
    for index in range(num_rows):
        row = [each for each in pieces if each.batch_index == index or each.was_stopped]
        ended_s = max((each.at_s for each in row), default=started_s)
        completions.append(summarize_pieces(row, started_s, ended_s))
    return completions
