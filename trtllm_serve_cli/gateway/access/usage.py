"""Share the usage of each API key among the gateway processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Maximum number of keys in the shared table. For additional keys, each process enforces the limits
# separately. A row has 96 bytes plus 4 bytes per process.
_MAX_SHARED_KEYS = 16384


class UsageTable:
    """A table of per-key usage: requests, tokens and running sequences.

    In each row, `requests` and `tokens` are `TokenBucket` states. `running` is an array with the
    number of running and queued sequences in each process. Each process updates only the element at
    its `process_index`. If `file` is set, all gateway processes share the table through this file.
    Otherwise, the table is private to this process.
    """

    def __init__(
        self, file: Path | None = None, process_index: int = 0, num_processes: int = 1
    ) -> None:
        self.process_index = process_index
        self._dtype = np.dtype(
            [
                # The key's SHA-256 hash, in hexadecimal.
                ("key", "S64"),
                ("requests", np.float64, (2,)),
                ("tokens", np.float64, (2,)),
                ("running", np.int32, (num_processes,)),
            ]
        )
        self._lock: int | None = None
        self._rows: Any = np.zeros(0, self._dtype)
        if file is not None:
            self._lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(self._lock, _MAX_SHARED_KEYS * self._dtype.itemsize)
            self._rows = np.memmap(file, self._dtype, "r+", shape=_MAX_SHARED_KEYS)
            # Reset the count. If this process replaces a killed process, the requests of the killed
            # process have ended.
            self._rows["running"][:, process_index] = 0
        self._known: dict[str, Any] = {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the table's lock during the `with` block.

        Only the process with the lock may check limits and charge usage. The values of `running`
        can still decrease, because requests end without the lock. A private table has no lock.
        """
        if self._lock is None:
            yield
            return
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def find(self, key_hash: str) -> Any:
        """Return the row of a key and add it if necessary. The caller must hold the lock.

        If the shared table is full, the new row is private to this process.
        """
        row = self._known.get(key_hash)
        if row is None:
            row = self._known[key_hash] = self._find_shared(key_hash)
        return row

    def _find_shared(self, key_hash: str) -> Any:
        encoded = key_hash.encode()
        for content in (encoded, b""):
            found = np.flatnonzero(self._rows["key"] == content)
            if found.size:
                row = self._rows[found[0]]
                row["key"] = encoded
                return row
        return np.zeros(1, self._dtype)[0]
