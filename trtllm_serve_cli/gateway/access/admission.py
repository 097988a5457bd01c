"""Admit, queue or reject requests that use a model.

Rendering and encoding a prompt can take seconds, so a request must be admitted before this work
starts. After the prompt has been encoded, its tokens are charged to the API key.

Long requests are processed in threads, so that they do not delay the tokens of other requests.
Rendering and encoding 1 MB takes about 0.5 s, and up to 2 s for unusual text. Tokenizers release
the GIL while they encode. Short requests stay in the event loop, because a thread adds 0.1 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from trtllm_serve_cli.gateway.access.call import find_call
from trtllm_serve_cli.gateway.access.limits import Limits
from trtllm_serve_cli.gateway.errors import ApiError, model_not_found, too_deep
from trtllm_serve_cli.gateway.http import run_while_connected
from trtllm_serve_cli.runtime.text.text_limits import LONG_TEXT

_THREADS = ThreadPoolExecutor(4, thread_name_prefix="long-request")
Result = TypeVar("Result")


def check_model(request: Request, model: str) -> None:
    """Raise `ApiError` (404) if the request's API key may not use the model."""
    key = find_call(request.scope).key
    if key is not None and not key.may_use(model):
        raise model_not_found(model, key.models)


async def admit(request: Request, model: str, num_sequences: int = 1) -> None:
    """Wait until a request that generates `num_sequences` sequences may run.

    The request body must already have been read. The ticket is stored in the request's `Call`, and
    `Guard` releases it after the response.

    Raise `ApiError` with one of these statuses:

    - 404: the key may not use the model.
    - 429: the request exceeds a limit of the key, or the queue is full.
    - 499: the client disconnected while the request was queued.
    """
    check_model(request, model)
    call = find_call(request.scope)
    call.model = model
    limits: Limits = request.app.state.limits
    try:
        call.ticket = ticket = limits.admit(call.key, num_sequences)
    except ApiError as error:
        call.rejected_by = error.reason
        raise
    if ticket.is_waiting:
        await run_while_connected(request.receive, ticket.wait)
    if ticket.is_waiting:
        raise ApiError(499, "The client disconnected while the request was queued.")


async def process(request: Request, work: Callable[[], Result]) -> Result:
    """Call `work` and return its result.

    If the request body has more than `LONG_TEXT` bytes, call `work` in a thread (see `run_work`).
    Raise `ApiError` (400) if the body is nested too deeply for the work.
    """
    try:
        return await run_work(work, is_long=request.state.num_body_bytes > LONG_TEXT)
    except RecursionError as error:
        raise too_deep() from error


async def run_work(work: Callable[[], Result], *, is_long: bool) -> Result:
    """Call `work` and return its result. If `is_long` is set, call `work` in a thread.

    The request must already be admitted, so that the limits apply to the work. A client disconnect
    does not stop the work.
    """
    if not is_long:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


def charge_prompt(request: Request, num_tokens: int) -> None:
    """Record the number of prompt tokens and charge them to the key's tokens-per-minute limit.

    Raise `ApiError` (429) if the prompt has more tokens than the limit, or more than are currently
    available.
    """
    call = find_call(request.scope)
    assert call.ticket is not None
    call.num_input_tokens = num_tokens
    try:
        call.ticket.charge_prompt(num_tokens)
    except ApiError as error:
        call.rejected_by = error.reason
        raise
