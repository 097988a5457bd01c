from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, generates
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.backend import OnUpdate
from trtllm_serve_cli.gateway.generation.generation import Generation, GenerationPlan
from trtllm_serve_cli.gateway.generation.text_stream import TextDelta
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder
from trtllm_serve_cli.runtime.text.step_decoder import StepDecoder

FIELDS: dict[str, Any] = {
    "input_ids": (1, 2), "max_new_tokens": 9, "num_return_sequences": 1, "return_log_probs": False,
}  # fmt: skip


class ImmediateBackend(FakeBackend):
    """A backend that sends all updates in one turn of the event loop."""

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        def send() -> None:
            for update in self.reply(1, fields):
                on_update(update)

        asyncio.get_running_loop().call_soon(send)
        return 1

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)


def test_tokens_before_an_error_are_not_lost() -> None:
    updates = [
        SequenceUpdate(1, 0, (ord("a"),)),
        SequenceUpdate(1, 0, (ord("b"),)),
        SequenceUpdate(1, error="out of memory"),
    ]
    backend = ImmediateBackend(lambda request_id, fields: updates)

    async def run() -> None:
        generation = Generation(backend, [GenerationPlan(FIELDS)])
        batches = generation.batches()
        assert [delta.text for delta in await anext(batches)] == ["ab"]
        with pytest.raises(ApiError, match="out of memory"):
            await anext(batches)
        assert (generation.num_input_tokens, generation.num_output_tokens) == (2, 2)

    asyncio.run(run())
    assert backend.cancelled == [1]


def test_text_is_written_directly_while_the_reader_waits() -> None:
    """`batches` yields the first text, the text that cannot be written, and the last text."""
    backend = FakeBackend(generates("abcde"))
    written: list[str] = []
    counts: list[int] = []

    def write(delta: TextDelta) -> bool:
        if delta.text != "c":
            written.append(delta.text)
        return delta.text != "c"

    async def run() -> list[str]:
        generation = Generation(backend, [GenerationPlan(FIELDS)], counts.append)
        batches = generation.batches()
        yielded = [delta.text for delta in await anext(batches)]
        generation.write_directly(write)
        async for deltas in batches:
            yielded += [delta.text for delta in deltas]
        assert (generation.num_output_tokens, generation.finish_reasons) == (5, ("stop",))
        return yielded

    assert asyncio.run(run()) == ["a", "c", ""]
    assert (written, sum(counts)) == (["b", "d", "e"], 5)


def test_failed_writing_ends_the_call() -> None:
    def write(delta: TextDelta) -> bool:
        raise ValueError("broken writer")

    async def run() -> None:
        batches = (generation := Generation(backend, [GenerationPlan(FIELDS)])).batches()
        await anext(batches)
        generation.write_directly(write)
        with pytest.raises(ValueError, match="broken writer"):
            await anext(batches)

    backend = FakeBackend(generates("abc"))
    asyncio.run(run())
    assert backend.cancelled == [1]


class SteppingBackend(ImmediateBackend):
    """A backend that decodes the tokens of each step ahead, and counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        self._decoder = StepDecoder(self._decode_all)

    def _decode_all(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        self.num_calls += 1
        return ["".join(map(chr, ids)) for ids in sequences]

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        def send() -> None:
            for letter in "abc":
                updates = [SequenceUpdate(1, index, (ord(letter),)) for index in range(2)]
                self._decoder.decode_ahead(updates)
                for update in updates:
                    on_update(update)

        asyncio.get_running_loop().call_soon(send)
        return 1

    def open_decoder(
        self, request_id: int, sequence_index: int, *, skips_special_tokens: bool
    ) -> StreamDecoder:
        return self._decoder.open_stream(request_id, sequence_index)


def test_tokens_are_decoded_together_although_the_caller_is_slow() -> None:
    backend = SteppingBackend()

    async def run() -> list[TextDelta]:
        plan = GenerationPlan({**FIELDS, "num_return_sequences": 2})
        return await anext(Generation(backend, [plan]).batches())

    assert [delta.text for delta in asyncio.run(run())] == ["abc", "abc"]
    assert backend.num_calls == 3


class BrokenBackend(ImmediateBackend):
    """A backend whose decoder fails."""

    def open_decoder(
        self, request_id: int, sequence_index: int, *, skips_special_tokens: bool
    ) -> StreamDecoder:
        def decode(token_ids: list[int]) -> str:
            raise ValueError("broken tokenizer")

        return StreamDecoder(decode)


def test_failed_decoding_ends_the_call_but_not_the_delivery_to_others() -> None:
    backend = BrokenBackend(lambda request_id, fields: [SequenceUpdate(1, 0, (97,))])

    async def run() -> None:
        # An exception in a callback of the event loop would be reported here.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: escaped.append(1))
        with pytest.raises(ValueError, match="broken tokenizer"):
            await anext(Generation(backend, [GenerationPlan(FIELDS)]).batches())

    escaped: list[int] = []
    asyncio.run(run())
    assert escaped == [] and backend.cancelled == [1]
