"""Distribute requests across several engines or servers of the same model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

from trtllm_serve_cli.gateway.errors import unavailable
from trtllm_serve_cli.gateway.generation.backend import Backend, OnUpdate
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder
from trtllm_serve_cli.runtime.worker.least_busy import LeastBusyChooser


class BalancedBackend:
    """A backend that sends each request to the open backend with the fewest requests in flight."""

    def __init__(self) -> None:
        self._backends: list[Backend] = []
        self._num_in_flight: list[int] = []
        self._chooser = LeastBusyChooser()
        self._ids = itertools.count(1)
        # Maps request ids to the backend's index and the backend's own request id.
        self._requests: dict[int, tuple[int, int]] = {}

    def add(self, backend: Backend) -> None:
        """Add a backend, which then receives part of the new requests."""
        self._backends.append(backend)
        self._num_in_flight.append(0)

    @property
    def is_open(self) -> bool:
        return any(each.is_open for each in self._backends)

    @property
    def accepts_adapters(self) -> bool:
        return all(each.accepts_adapters for each in self._backends)

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        candidates = [index for index, each in enumerate(self._backends) if each.is_open]
        if not candidates:
            raise unavailable("No engine of this model is ready. Retry the request.")
        index = self._chooser.choose(candidates, lambda each: self._num_in_flight[each])
        request_id = next(self._ids)

        def forward(update: SequenceUpdate) -> None:
            # Replace the backend's request id, because request ids are unique only per backend.
            on_update(_with_id(update, request_id))

        inner_id = self._backends[index].submit(fields, forward)
        self._requests[request_id] = (index, inner_id)
        self._num_in_flight[index] += 1
        return request_id

    def cancel(self, request_id: int) -> None:
        if (found := self._requests.pop(request_id, None)) is not None:
            index, inner_id = found
            self._num_in_flight[index] -= 1
            self._backends[index].cancel(inner_id)

    def open_decoder(
        self, request_id: int, sequence_index: int, *, skips_special_tokens: bool
    ) -> StreamDecoder:
        index, inner_id = self._requests[request_id]
        return self._backends[index].open_decoder(
            inner_id, sequence_index, skips_special_tokens=skips_special_tokens
        )

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._backends))


def _with_id(update: SequenceUpdate, request_id: int) -> SequenceUpdate:
    return SequenceUpdate(
        request_id, *(getattr(update, name) for name in SequenceUpdate.__slots__[1:])
    )
