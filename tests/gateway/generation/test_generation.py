from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.backend import OnUpdate
from trtllm_serve_cli.gateway.generation.generation import Generation, GenerationPlan
from trtllm_serve_cli.runtime.engine import SequenceUpdate

FIELDS: dict[str, Any] = {
    "input_ids": (1, 2), "max_new_tokens": 9, "num_return_sequences": 1, "return_log_probs": False,
}  # fmt: skip


class ImmediateBackend(FakeBackend):
    """A backend that sends all updates when it receives the request."""

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        for update in self.reply(1, fields):
            on_update(update)
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
