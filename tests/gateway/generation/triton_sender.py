"""Send requests to the model `tensorrt_llm` of a fake Triton, as the gateway does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.fakes.triton.server import FakeTriton
from tests.gateway.fakes import LetterTokenizer
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import fetch_model_config
from trtllm_serve_cli.gateway.errors import engine_error
from trtllm_serve_cli.gateway.generation.triton_backend import TritonBackend
from trtllm_serve_cli.runtime.engine import SequenceUpdate

FIELDS: Mapping[str, Any] = {
    "input_ids": (7, 8), "max_new_tokens": 3, "num_return_sequences": 1, "return_log_probs": False,
}  # fmt: skip
PERIOD_S = 0.02


class Backend(TritonBackend):
    """A backend that stores the updates of all its requests."""

    def __init__(self, endpoint: Endpoint, stop_timeout_s: float) -> None:
        core = fetch_model_config(endpoint, "tensorrt_llm")
        super().__init__(
            endpoint,
            core,
            LetterTokenizer(),
            ready_period_s=PERIOD_S,
            stop_timeout_s=stop_timeout_s,
        )
        self.updates: list[SequenceUpdate] = []

    def send(self, **fields: Any) -> int:
        return self.submit({**FIELDS, **fields}, self.updates.append)

    @property
    def num_calls(self) -> int:
        """The number of requests that have not ended on the server."""
        return len(self._calls)

    @property
    def num_ended(self) -> int:
        return sum(bool(each.finish_reason or each.error) for each in self.updates)


def run(
    endpoint: Endpoint, test: Callable[[Backend], Awaitable[None]], stop_timeout_s: float = 60
) -> list[SequenceUpdate]:
    """Run a test with a backend, and return the updates."""

    async def main() -> list[SequenceUpdate]:
        backend = Backend(endpoint, stop_timeout_s)
        try:
            await asyncio.wait_for(test(backend), timeout=60)
        finally:
            await backend.close()
        return backend.updates

    return asyncio.run(main())


async def wait_until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def request(triton: FakeTriton, num_sequences: int = 1, **fields: Any) -> list[SequenceUpdate]:
    """Return the updates of a request."""

    async def test(backend: Backend) -> None:
        backend.send(num_return_sequences=num_sequences, **fields)
        await wait_until(lambda: backend.num_ended)
        await wait_until(lambda: backend.num_ended == num_sequences or backend.updates[-1].error)

    return run(triton.endpoint, test)


def ids_of(updates: list[SequenceUpdate], index: int = 0) -> list[int]:
    return [token for each in updates if each.sequence_index == index for token in each.token_ids]


def status_of(update: SequenceUpdate) -> int:
    """Return the HTTP status that the client receives."""
    assert update.error is not None
    return engine_error(update.error, is_rejected=update.rejected).status
