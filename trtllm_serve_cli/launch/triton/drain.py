"""Drain models by rejecting new requests while requests in flight finish.

Triton does not track the unfinished responses of decoupled Python models. When Triton stops, it
aborts these responses. The supervisor therefore drains a server before it stops Triton. During a
drain, the models reject new requests, and the engines report the requests in flight
(`live_status.watch_in_flight`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# Environment variable with the path of the folder that contains the drain markers. A drain marker
# is an empty file with the name of a draining model. Each model checks for its own drain marker
# (runtime/triton/drain_check.py).
_VARIABLE = "TLLM_DRAINING"
_FOLDER = "draining"


def drain_environ(directory: Path) -> dict[str, str]:
    """Return the environment variable with the path of the folder for drain markers."""
    return {_VARIABLE: str(directory / _FOLDER)}


@contextlib.contextmanager
def draining(directory: Path, models: Iterable[str]) -> Iterator[None]:
    """Make the Triton models `models` reject new requests until the context exits."""
    folder = directory / _FOLDER
    markers = [folder / model for model in models]
    try:
        # Continue even if the disk is full. A model without a drain marker continues to accept
        # requests.
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            for marker in markers:
                marker.touch()
        yield
    finally:
        # The next start also removes the markers, and does not start the server if this fails.
        for marker in markers:
            with contextlib.suppress(OSError):
                marker.unlink()


def clear_drains(directory: Path) -> None:
    """Remove drain markers that a killed process left behind, so that models accept requests.

    Create the folder for drain markers if it is missing, because containers mount the folder.
    """
    # Ignore a full disk, because a missing folder contains no drain markers.
    with contextlib.suppress(OSError):
        (directory / _FOLDER).mkdir(exist_ok=True)
    for marker in (directory / _FOLDER).glob("*"):
        marker.unlink(missing_ok=True)


def format_in_flight(in_flight: Mapping[str, int] | None) -> str:
    """Format the number of requests in flight for each engine.

    `in_flight` is None if the numbers are unknown.
    """
    if in_flight is None:
        return "an unknown number (the server does not respond)"
    return ", ".join(f"{count} in {engine}" for engine, count in in_flight.items())
