"""Run the requests of one API call on a backend and yield the generated text in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trtllm_serve_cli.gateway.errors import engine_error
from trtllm_serve_cli.gateway.generation.backend import Backend
from trtllm_serve_cli.gateway.generation.text_stream import TextDelta, TextSequence, merge_deltas
from trtllm_serve_cli.runtime.engine import SequenceUpdate


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """An engine request and the settings for converting the generated tokens to text.

    `fields` are the fields of a `GenerationRequest`. The text ends at the first stop string
    (`stops`) that the model generates. If `includes_stop` is set, the text includes this string.
    `params` maps the engine's names of inputs to the request fields that set them, for errors.
    """

    fields: Mapping[str, Any]
    stops: Sequence[str] = ()
    includes_stop: bool = False
    skips_special_tokens: bool = True
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def input_ids(self) -> tuple[int, ...]:
        return tuple(self.fields["input_ids"])

    @property
    def num_sequences(self) -> int:
        return int(self.fields["num_return_sequences"])

    def rename_params(self, names: Mapping[str, str]) -> GenerationPlan:
        """Return a copy whose `params` have the names of another API. `names` maps old to new."""
        params = {each: names.get(param, param) for each, param in self.params.items()}
        return replace(self, params=params)


class Generation:
    """The running requests of an API call.

    All plans have the same number of sequences. Sequences are numbered consecutively across all
    requests. `on_tokens` is called with the number of new tokens for each batch and for each direct
    write. `trace_parent` is the W3C `traceparent` of the call's span, or "" if the call is not
    traced. The constructor submits the requests and raises the errors of `Backend.submit`.

    Tokens are decoded when they arrive, even if the client is slow, because `WorkerBackend` decodes
    the new tokens of all requests together and keeps their text only until the next step.
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
        self._write: Callable[[TextDelta], bool] | None = None
        self._sequences: dict[int, TextSequence] = {}
        # Maps backend request ids to plan indexes.
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
        """The number of tokens generated so far, across all sequences."""
        return sum(each.num_tokens for each in self._sequences.values())

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """The finish reasons of all finished sequences, ordered by sequence number."""
        ended = (self._sequences[index].finish_reason for index in sorted(self._sequences))
        return tuple(reason for reason in ended if reason is not None)

    @property
    def num_cached_tokens(self) -> int | None:
        """The number of prompt tokens that were already in the KV cache, or None if unknown."""
        return self._num_cached_tokens

    def write_directly(self, write: Callable[[TextDelta], bool]) -> None:
        """Pass new text directly to `write` while the consumer of `batches` is waiting.

        This avoids waking the consumer's task for each token. `batches` still yields the last text
        of each sequence, text that arrives while the consumer is not waiting, and text for which
        `write` returns False.
        """
        self._write = write

    async def batches(self) -> AsyncGenerator[list[TextDelta], None]:
        """Yield new text until all sequences have finished.

        If the caller reads slowly, a batch can contain text from several engine steps. Closing the
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
        # Store errors instead of raising them: the backend also delivers updates to other calls.
        try:
            if update.error is not None:
                params = self._plans[self._requests[update.request_id]].params
                raise engine_error(update.error, is_rejected=update.rejected, params=params)
            delta = self._push(update)
            if delta is not None and self._has_written(delta):
                self._on_tokens(len(update.token_ids))
                return
            self._num_arrived_tokens += len(update.token_ids)
            if delta is not None:
                self._arrived.append(delta)
        except Exception as error:
            self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _has_written(self, delta: TextDelta) -> bool:
        """Write `delta` directly if possible and return whether it was written."""
        is_reader_waiting = self._waiter is not None and not self._waiter.done()
        if self._write is None or not is_reader_waiting or delta.finish_reason is not None:
            return False
        return self._write(delta)

    async def _wait(self) -> list[TextDelta]:
        """Wait until text arrives or a request fails, and return the new text."""
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
