"""Decide whether a request that generates tokens may run, and when it starts."""

from __future__ import annotations

from starlette.requests import Request

from trtllm_serve_cli.gateway.access.call import find_call
from trtllm_serve_cli.gateway.access.limits import Limits
from trtllm_serve_cli.gateway.errors import ApiError, model_not_found
from trtllm_serve_cli.gateway.http import run_while_connected


def check_model(request: Request, model: str) -> None:
    """Raise `ApiError` (404) if the request's key may not use the model."""
    key = find_call(request.scope).key
    if key is not None and not key.may_use(model):
        raise model_not_found(model, key.models)


async def admit(request: Request, model: str, num_input_tokens: int) -> bool:
    """Wait until the request may run. Return False if the client disconnected in the meantime.

    The request body must already have been read. The ticket is stored in the request's `Call`, and
    `Guard` releases it after the response. Raise `ApiError` with status 404 if the key may not use
    the model, or 429 if the request exceeds a limit.
    """
    check_model(request, model)
    call = find_call(request.scope)
    call.model, call.num_input_tokens = model, num_input_tokens
    limits: Limits = request.app.state.limits
    try:
        call.ticket = ticket = limits.admit(call.key, num_input_tokens)
    except ApiError as error:
        call.rejected_by = error.reason
        raise
    if not ticket.is_waiting:
        return True
    await run_while_connected(request.receive, ticket.wait)
    return not ticket.is_waiting
