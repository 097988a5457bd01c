"""An engine that returns the tokens of a prompt in reverse order, one per step."""

from __future__ import annotations

from typing import Any

from ...engine import EngineLimits, EngineStats, GenerationRequest, SequenceUpdate


class ToyEngine:
    """An engine without a limit of concurrent requests."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.limits = EngineLimits(config["max_seq_len"], 1, config["vocab_size"])
        self._left: dict[int, list[int]] = {}

    def submit(self, request: GenerationRequest) -> None:
        self._left[request.id] = list(request.input_ids[-request.max_new_tokens :])

    def cancel(self, request_id: int) -> None:
        self._left.pop(request_id, None)

    def has_work(self) -> bool:
        return bool(self._left)

    def step(self) -> list[SequenceUpdate]:
        updates = [
            SequenceUpdate(number, 0, (left.pop(),), None if left else "length")
            for number, left in self._left.items()
        ]
        self._left = {number: left for number, left in self._left.items() if left}
        return updates

    def stats(self) -> EngineStats:
        return EngineStats(active_requests=len(self._left), scheduled_requests=len(self._left))

    def close(self) -> None:
        """Do nothing: no resources outlive this process."""
