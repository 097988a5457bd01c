"""Drain models by rejecting new requests while requests in flight finish.

Triton does not count the unfinished responses of a decoupled Python model, and aborts these
responses when it stops. The supervisor therefore drains a server before stopping it. The models
reject new requests, and the engines report the requests in flight (`live_status.watch_in_flight`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# Environment variable with the path of the folder that contains the markers. A marker is an empty
# file with the name of a draining model. Each model checks for its own marker
# (runtime/triton/drain_check.py).
_VARIABLE = "TLLM_DRAINING"
_FOLDER = "draining"


def drain_environ(directory: Path) -> dict[str, str]:
    """Return the environment variable that contains the path of the folder with the markers."""
    return {_VARIABLE: str(directory / _FOLDER)}


@contextlib.contextmanager
def draining(directory: Path, models: Iterable[str]) -> Iterator[None]:
    """Make the Triton models `models` reject new requests until the context exits."""
    folder = directory / _FOLDER
    markers = [folder / model for model in models]
    try:
        # Continue even if the disk is full, because a model without a marker merely continues to
        # accept requests.
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            for marker in markers:
                marker.touch()
        yield
    finally:
        for marker in markers:
            marker.unlink(missing_ok=True)


def clear_drains(directory: Path) -> None:
    """Remove markers that a killed process left behind, so that the models accept requests.

    Create the folder if it is missing, because containers mount it.
    """
    # Ignore a full disk: if the folder cannot be created, there are no markers to remove.
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
