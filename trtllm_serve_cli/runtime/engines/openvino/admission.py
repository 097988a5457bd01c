"""Limit the number of sequences in OpenVINO GenAI's pipeline.

With `dynamic_split_fuse`, the default, the pipeline's scheduler ignores `max_num_seqs` (observed
with OpenVINO GenAI 2026.4.1), so it would schedule all requests together.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class AdmissionQueue(Generic[T]):
    """A queue that admits requests in order of arrival while slots are free.

    There are `max_sequences` slots. A request occupies one slot for each of its sequences, from its
    admission to its release.
    """

    def __init__(self, max_sequences: int) -> None:
        self.max_sequences = max_sequences
        self._waiting: dict[int, tuple[int, T]] = {}
        self._admitted: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    def add(self, request_id: int, num_sequences: int, item: T) -> None:
        """Append a request, which must not need more than `max_sequences` slots."""
        self._waiting[request_id] = (num_sequences, item)

    def admit(self) -> list[T]:
        """Return the items of the requests that have slots now, in order of arrival.

        A request that needs more slots than are free also holds back the requests behind it, so
        that it cannot wait indefinitely.
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
        """Free the slots of an admitted request."""
        self._admitted.pop(request_id, None)
