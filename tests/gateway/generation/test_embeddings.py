"""Embeddings of one API call on a fake backend."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.backend import OnUpdate
from trtllm_serve_cli.gateway.generation.embeddings import compute_embeddings
from trtllm_serve_cli.runtime.engine import SequenceUpdate

BROKEN, HANGING = 0, 1


def reply(request_id: int, fields: Mapping[str, Any]) -> list[SequenceUpdate]:
    """Return the token as the embedding, or an error for the token `BROKEN`."""
    (token,) = fields["input_ids"]
    if token == BROKEN:
        return [SequenceUpdate(request_id, error="broken")]
    return [SequenceUpdate(request_id, finish_reason="stop", embedding=str(token))]


class HangingBackend(FakeBackend):
    """A backend that never responds to the token `HANGING`."""

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        if fields["input_ids"] != (HANGING,):
            return super().submit(fields, on_update)
        self.submitted.append(fields)
        return len(self.submitted)

    def cancel(self, request_id: int) -> None:
        if self.submitted[request_id - 1]["input_ids"] == (HANGING,):
            self.cancelled.append(request_id)
        else:
            super().cancel(request_id)


def test_embeddings_are_in_the_order_of_the_inputs() -> None:
    found = asyncio.run(compute_embeddings(FakeBackend(reply), [(4,), (3,), (5,)]))
    assert found == ["4", "3", "5"]


def test_an_error_cancels_the_other_requests() -> None:
    async def run() -> FakeBackend:
        backend = HangingBackend(reply)
        with pytest.raises(ApiError, match="broken") as failed:
            await compute_embeddings(backend, [(2,), (BROKEN,), (HANGING,)])
        assert failed.value.status == 500
        return backend

    assert asyncio.run(run()).cancelled == [3]


def test_a_disconnected_client_cancels_all_requests() -> None:
    async def run() -> FakeBackend:
        backend = HangingBackend(reply)
        task = asyncio.create_task(compute_embeddings(backend, [(HANGING,), (HANGING,)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return backend

    assert asyncio.run(run()).cancelled == [1, 2]
