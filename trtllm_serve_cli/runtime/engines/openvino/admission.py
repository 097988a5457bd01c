"""Limit the number of sequences in OpenVINO GenAI's pipeline.

With `dynamic_split_fuse`, which is enabled by default, the pipeline's scheduler ignores
`max_num_seqs` (observed with OpenVINO GenAI 2026.4.1). Without the limit in this module, the
scheduler would run more sequences than `max_num_seqs` at the same time.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class AdmissionQueue(Generic[T]):
    """A queue that admits requests in order of arrival while slots are free.

    The queue has `max_sequences` slots. An admitted request occupies one slot per sequence until it
    is released.
    """

    def __init__(self, max_sequences: int) -> None:
        self.max_sequences = max_sequences
        self._waiting: dict[int, tuple[int, T]] = {}
        self._admitted: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    def add(self, request_id: int, num_sequences: int, item: T) -> None:
        """Append a request. When the request is admitted, `admit` returns `item`.

        The request must not need more than `max_sequences` slots.
        """
        self._waiting[request_id] = (num_sequences, item)

    def admit(self) -> list[T]:
        """Admit requests in order of arrival while slots are free, and return their items.

        If a request needs more slots than are free, all later requests also wait. Otherwise, a
        request with many sequences might wait indefinitely.
        """
        items = []
        num_free = self.max_sequences - sum(self._admitted.values())
        for request_id, (num_sequences, item) in list(self._waiting.items()):
            if num_sequences > num_free:
                break
            num_free -= num_sequences
            del self._waiting[request_id]
            self._admitted[request_id] = num_sequences
            items.append(item)
        return items

    def drop(self, request_id: int) -> None:
        """Remove a waiting request. Do nothing if the request is not waiting."""
        self._waiting.pop(request_id, None)

    def release(self, request_id: int) -> None:
        """Free the slots of an admitted request. Do nothing if the request was not admitted."""
        self._admitted.pop(request_id, None)
