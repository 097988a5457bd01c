"""Find out whether requests for Triton's API that run at the same time have the same id."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Bytes of a hash that are the offset of a byte in a file. The kernel limits offsets to 2^63 - 1.
_OFFSET_BYTES = 7


class ClientIds:
    """The ids that clients have given to the requests in flight.

    All gateway processes share them through locks on bytes of `file`, which remains empty. The
    kernel releases the locks of a process that dies. If `file` is None, there is only one process.
    """

    def __init__(self, file: Path | None = None) -> None:
        # The requests of this process. Locks of one process do not exclude each other.
        self._num_running: Counter[int] = Counter()
        self._locks = None if file is None else os.open(file, os.O_RDWR | os.O_CREAT, 0o600)

    @contextlib.contextmanager
    def hold(self, model: str, request_id: str) -> Iterator[int]:
        """Note that a request runs during the `with` block.

        Yield a number for `is_shared`. Two ids have the same number with a probability of 2^-56.
        """
        digest = hashlib.sha256(f"{model}\0{request_id}".encode(errors="surrogatepass")).digest()
        offset = int.from_bytes(digest[:_OFFSET_BYTES], "big")
        self._num_running[offset] += 1
        self._lock(fcntl.LOCK_SH, offset)
        try:
            yield offset
        finally:
            self._num_running[offset] -= 1
            if not self._num_running[offset]:
                del self._num_running[offset]
                self._lock(fcntl.LOCK_UN, offset)

    def is_shared(self, offset: int) -> bool:
        """Return whether another request in flight has the id that `hold` has returned."""
        if self._num_running[offset] > 1:
            return True
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB, offset)
        except BlockingIOError:
            return True
        self._lock(fcntl.LOCK_SH, offset)
        return False

    def _lock(self, operation: int, offset: int) -> None:
        if self._locks is not None:
            fcntl.lockf(self._locks, operation, 1, offset)
