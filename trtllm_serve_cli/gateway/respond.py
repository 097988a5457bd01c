"""Run a generation and return a complete or a streaming response."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.gateway.access.admission import charge_prompt, run_work
from trtllm_serve_cli.gateway.access.call import Call, find_call
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.generation import Generation, GenerationPlan
from trtllm_serve_cli.gateway.generation.text_stream import TextDelta
from trtllm_serve_cli.gateway.http import EventStream, JsonResponse, run_while_connected
from trtllm_serve_cli.gateway.response_body import ResponseBody, find_response_body
from trtllm_serve_cli.gateway.served_model import LoadedModel

Batches = AsyncGenerator[list[TextDelta], None]
# The end of a response with more tokens is written in a thread. Encoding this many tokens takes
# about 2 ms.
_LONG_OUTPUT = 1000


class Writer(Protocol):
    """Interface for classes that create a response from generated text."""

    def first_events(self) -> bytes:
        """Return the events that start a stream."""

    def events(self, delta: TextDelta) -> bytes:
        """Return the events for new text of one sequence."""

    def last_events(self, generation: Generation) -> bytes:
        """Return the events that end a stream."""

    def error_events(self, error: ApiError) -> bytes:
        """Return the events that end a stream after an error."""
        return b"data: " + error.body() + b"\n\n"

    def finish_reasons(self, generation: Generation) -> tuple[str, ...]:
        """Return the finish reasons of the finished sequences, for the request's span.

        The default implementation returns the finish reasons in `generation`.
        """
        return generation.finish_reasons

    def collect(self, delta: TextDelta) -> None:
        """Add new text of one sequence to the body of a non-streaming response."""

    def whole(self, generation: Generation) -> bytes:
        """Return the body of a non-streaming response."""


async def respond(
    request: Request,
    model: LoadedModel,
    plans: Sequence[GenerationPlan],
    writer: Writer,
    *,
    is_streaming: bool,
) -> Response:
    """Generate a response to a request that has been admitted.

    If the client disconnects, cancel the engine requests. A stream starts only after the first
    tokens have arrived, so that the client receives the HTTP status of earlier errors. Raise
    `ApiError` if the prompts exceed the key's token limit, or if the generation fails before the
    response has started.
    """
    charge_prompt(request, sum(len(plan.input_ids) for plan in plans))
    call = find_call(request.scope)
    generation = Generation(model.backend, plans, call.add_tokens, call.trace_parent)
    batches = generation.batches()
    config = request.app.state.config
    if not is_streaming:
        whole = await run_while_connected(
            request.receive, lambda: _finish(batches, writer, generation, call)
        )
        return Response(status_code=499) if whole is None else JsonResponse(whole)
    first = await run_while_connected(request.receive, lambda: anext(batches))
    if first is None:
        await batches.aclose()
        return Response(status_code=499)
    body = find_response_body(request.scope)
    return EventStream(
        _stream(first, batches, writer, generation, call, body),
        send_timeout_s=config.send_timeout_s,
    )


async def _finish(batches: Batches, writer: Writer, generation: Generation, call: Call) -> bytes:
    try:
        async for deltas in batches:
            for delta in deltas:
                writer.collect(delta)
        return await _write_end(writer.whole, generation)
    finally:
        _describe_end(call, writer, generation)
        await batches.aclose()


async def _stream(
    first: Sequence[TextDelta],
    batches: Batches,
    writer: Writer,
    generation: Generation,
    call: Call,
    body: ResponseBody | None,
) -> AsyncGenerator[bytes, None]:
    try:
        yield writer.first_events() + b"".join(map(writer.events, first))
        if body is not None:
            generation.write_directly(partial(_write_events, body, writer))
        async for deltas in batches:
            if events := b"".join(map(writer.events, deltas)):
                yield events
        yield await _write_end(writer.last_events, generation)
    except ApiError as error:
        # Status 200 has already been sent, so send the error as an event.
        call.late_error = error.status
        yield writer.error_events(error)
    finally:
        _describe_end(call, writer, generation)
        await batches.aclose()


async def _write_end(write: Callable[[Generation], bytes], generation: Generation) -> bytes:
    """Return the end of a response. Some writers count the reasoning tokens, which takes time."""
    is_long = generation.num_output_tokens > _LONG_OUTPUT
    return await run_work(partial(write, generation), is_long=is_long)


def _write_events(body: ResponseBody, writer: Writer, delta: TextDelta) -> bool:
    """Write the events for new text. Return False if they cannot be written without waiting."""
    if not body.is_writable:
        return False
    if events := writer.events(delta):
        body.write(events)
    return True


def _describe_end(call: Call, writer: Writer, generation: Generation) -> None:
    """Record the outcome of the generation in `call` for the request's span, if it has one."""
    if call.span_id:
        call.finish_reasons = writer.finish_reasons(generation)
        call.num_cached_tokens = generation.num_cached_tokens
