"""Run the requests of one API call on a backend, and yield their text in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_serve_cli.gateway.errors import engine_error
from trtllm_serve_cli.gateway.generation.backend import Backend
from trtllm_serve_cli.gateway.generation.text_stream import TextDelta, TextSequence, merge_deltas
from trtllm_serve_cli.runtime.engine import SequenceUpdate


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """A request for an engine, and the settings for converting its tokens to text.

    `fields` are the fields of a `GenerationRequest`. The text ends at the first string of `stops`
    that the model generates. `includes_stop` keeps this string in the text.
    """

    fields: Mapping[str, Any]
    stops: Sequence[str] = ()
    includes_stop: bool = False
    skips_special_tokens: bool = True

    @property
    def input_ids(self) -> tuple[int, ...]:
        return tuple(self.fields["input_ids"])

    @property
    def num_sequences(self) -> int:
        return int(self.fields["num_return_sequences"])


class Generation:
    """The running requests of an API call.

    All plans have the same number of sequences. The sequences are numbered across the requests:
    the first sequence of the second request follows the last sequence of the first request.
    `on_tokens` is called with the number of tokens in each batch of text. `trace_parent` is the W3C
    `traceparent` of the call's span, or empty if the call is not traced.

    Tokens become text as soon as they arrive, even if the client is slow. The backend has then just
    decoded the tokens of all requests together, and keeps the result only until the next step.
    """

    def __init__(
        self,
        backend: Backend,
        plans: Sequence[GenerationPlan],
        on_tokens: Callable[[int], None] = lambda count: None,
        trace_parent: str = "",
    ) -> None:
        self._backend = backend
        self._on_tokens = on_tokens
        self._plans = plans
        self._arrived: list[TextDelta] = []
        self._num_arrived_tokens = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sequences: dict[int, TextSequence] = {}
        # Engine's request id -> index of its plan.
        self._requests: dict[int, int] = {}
        self._num_cached_tokens: int | None = None
        try:
            for index, plan in enumerate(plans):
                fields = plan.fields
                if trace_parent:
                    fields = {**fields, "trace_parent": trace_parent}
                request_id = backend.submit(fields, self._on_update)
                self._requests[request_id] = index
                # Open the decoders now, so that the backend can decode the first tokens of all
                # requests in one call.
                self._open_sequences(request_id, index, plan)
        except BaseException:
            self._cancel()
            raise

    @property
    def num_input_tokens(self) -> int:
        return sum(len(plan.input_ids) for plan in self._plans)

    @property
    def num_output_tokens(self) -> int:
        """The number of tokens that have been generated for all sequences so far."""
        return sum(each.num_tokens for each in self._sequences.values())

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Why each sequence has ended. Sequences that are still running are omitted."""
        ended = (self._sequences[index].finish_reason for index in sorted(self._sequences))
        return tuple(reason for reason in ended if reason is not None)

    @property
    def num_cached_tokens(self) -> int | None:
        """The number of prompt tokens that were in the KV cache already, or None if unknown."""
        return self._num_cached_tokens

    async def batches(self) -> AsyncGenerator[list[TextDelta], None]:
        """Yield the new text of the sequences until all of them have ended.

        If the caller reads slowly, one batch contains the text of several engine steps. Closing the
        generator cancels the requests. Raise `ApiError` if the engine rejects or cannot complete a
        request.
        """
        num_open = sum(plan.num_sequences for plan in self._plans)
        try:
            while num_open:
                deltas = await self._wait()
                if self._num_arrived_tokens:
                    self._on_tokens(self._num_arrived_tokens)
                    self._num_arrived_tokens = 0
                num_open -= sum([delta.finish_reason is not None for delta in deltas])
                if deltas:
                    yield deltas
                if self._error is not None and not self._arrived:
                    raise self._error
        finally:
            self._cancel()

    def _cancel(self) -> None:
        for request_id in self._requests:
            self._backend.cancel(request_id)

    def _on_update(self, update: SequenceUpdate) -> None:
        if self._error is not None:
            return
        # An exception must fail this call only. The backend delivers to other calls, too.
        try:
            if update.error is not None:
                raise engine_error(update.error, is_rejected=update.rejected)
            self._num_arrived_tokens += len(update.token_ids)
            if (delta := self._push(update)) is not None:
                self._arrived.append(delta)
        except Exception as error:
            self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> list[TextDelta]:
        """Wait until text has arrived or a request has failed, and return the text."""
        if not self._arrived and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        arrived, self._arrived = self._arrived, []
        return merge_deltas(arrived) if len(arrived) > 1 else arrived

    def _push(self, update: SequenceUpdate) -> TextDelta | None:
        if update.prompt is not None and update.prompt.num_cached_tokens is not None:
            known = self._num_cached_tokens or 0
            self._num_cached_tokens = known + update.prompt.num_cached_tokens
        number = self._requests[update.request_id]
        first = number * self._plans[number].num_sequences
        sequence = self._sequences[first + update.sequence_index]
        return None if sequence.is_ended else sequence.push(update)

    def _open_sequences(self, request_id: int, number: int, plan: GenerationPlan) -> None:
        words = plan.fields.get("stop_words", ())
        stop_token_ids = frozenset(word[0] for word in words if len(word) == 1)
        for sequence_index in range(plan.num_sequences):
            index = number * plan.num_sequences + sequence_index
            decoder = self._backend.open_decoder(
                request_id, sequence_index, skips_special_tokens=plan.skips_special_tokens
            )
            self._sequences[index] = TextSequence(
                index, decoder, plan.stops, stop_token_ids, plan.includes_stop
            )
