"""Define the interface of the backends that generate tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder

OnUpdate = Callable[[SequenceUpdate], None]


class Backend(Protocol):
    """A connection to an engine. All methods must be called from the event loop's thread."""

    @property
    def is_open(self) -> bool:
        """True if the engine can receive requests now."""

    @property
    def accepts_adapters(self) -> bool:
        """True if requests can use adapters in folders on the gateway's machine (`lora_file`)."""

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        """Submit a request and return its id.

        `fields` are the fields of a `GenerationRequest`. `on_update` is called from the event loop
        for each update until all sequences have finished or the request is cancelled. An update
        with an error is always the last one. Raise `ApiError` with status 503 if the engine cannot
        receive requests, 400 if it does not support a field, or 413 if the request is too long.
        """

    def cancel(self, request_id: int) -> None:
        """Cancel a request and stop its updates. Do nothing if the request has ended."""

    def open_decoder(
        self, request_id: int, sequence_index: int, *, skips_special_tokens: bool
    ) -> StreamDecoder:
        """Return a decoder for the tokens of one sequence."""

    async def close(self) -> None:
        """Close the connection. Requests in flight do not receive further updates."""
