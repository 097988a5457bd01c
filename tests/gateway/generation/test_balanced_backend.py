from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, generates
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.balanced_backend import BalancedBackend
from trtllm_serve_cli.runtime.engine import SequenceUpdate

FIELDS: dict[str, Any] = {
    "input_ids": (1,), "max_new_tokens": 9, "num_return_sequences": 1, "return_log_probs": False,
}  # fmt: skip


def test_requests_go_to_the_open_backend_with_the_fewest_requests() -> None:
    async def run() -> None:
        first, second = FakeBackend(), FakeBackend()
        balanced = BalancedBackend()
        balanced.add(first), balanced.add(second)
        ids = [balanced.submit(FIELDS, lambda update: None) for _ in range(4)]
        assert (len(first.submitted), len(second.submitted)) == (2, 2)
        # Equal backends take turns, so every other request was sent to the same backend.
        balanced.cancel(ids[0]), balanced.cancel(ids[2])
        freed, other = (first, second) if first.cancelled else (second, first)
        for _ in range(2):
            balanced.submit(FIELDS, lambda update: None)
        assert (len(freed.submitted), len(other.submitted)) == (4, 2)
        first.is_open = False
        num_before = len(second.submitted)
        for _ in range(3):
            balanced.submit(FIELDS, lambda update: None)
        assert len(second.submitted) == num_before + 3
        second.is_open = False
        assert not balanced.is_open
        with pytest.raises(ApiError, match="No engine of this model is ready"):
            balanced.submit(FIELDS, lambda update: None)

    asyncio.run(run())


def test_idle_backends_take_turns() -> None:
    async def run() -> None:
        backends = [FakeBackend() for _ in range(3)]
        balanced = BalancedBackend()
        for each in backends:
            balanced.add(each)
        for _ in range(6):
            balanced.cancel(balanced.submit(FIELDS, lambda update: None))
        assert [len(each.submitted) for each in backends] == [2, 2, 2]

    asyncio.run(run())


def test_updates_have_the_id_that_submit_returned() -> None:
    async def run() -> list[SequenceUpdate]:
        balanced = BalancedBackend()
        backends = [FakeBackend(generates("ab")), FakeBackend(generates("cd"))]
        for backend in backends:
            balanced.add(backend)
        updates: list[SequenceUpdate] = []
        ids = [balanced.submit(FIELDS, updates.append) for _ in range(2)]
        while len(updates) < 6:
            await asyncio.sleep(0)
        assert ids == [1, 2]
        return updates

    texts: dict[int, str] = {}
    for update in asyncio.run(run()):
        text = "".join(map(chr, update.token_ids))
        texts[update.request_id] = texts.get(update.request_id, "") + text
    assert texts.keys() == {1, 2}
    assert set(texts.values()) == {"ab", "cd"}
