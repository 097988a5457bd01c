"""Drain models: reject new requests while requests in flight finish.

Triton does not count the unfinished responses of a decoupled Python model. A server is therefore
drained before it is stopped: its models reject new requests, and its engines report the requests in
flight (`live_status.watch_in_flight`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# runtime/triton/drain_check.py reads this variable and looks for a file with its model's name.
_VARIABLE = "TLLM_DRAINING"
_FOLDER = "draining"


def drain_environ(directory: Path) -> dict[str, str]:
    """Return the variable with the folder of drain markers, which `clear_drains` creates."""
    return {_VARIABLE: str(directory / _FOLDER)}


@contextlib.contextmanager
def draining(directory: Path, models: Iterable[str]) -> Iterator[None]:
    """Make the Triton models `models` reject new requests within the context."""
    folder = directory / _FOLDER
    markers = [folder / model for model in models]
    try:
        # On a full disk, markers cannot be created and models still accept requests.
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            for marker in markers:
                marker.touch()
        yield
    finally:
        for marker in markers:
            marker.unlink(missing_ok=True)


def clear_drains(directory: Path) -> None:
    """Remove markers that a killed process left, so that the models accept requests.

    Create the folder if it is missing, because containers mount it.
    """
    # On a full disk, a missing folder means that there are no markers.
    with contextlib.suppress(OSError):
        (directory / _FOLDER).mkdir(exist_ok=True)
    for marker in (directory / _FOLDER).glob("*"):
        marker.unlink(missing_ok=True)


def format_in_flight(in_flight: Mapping[str, int] | None) -> str:
    """Format the counts for people; None means that they are unknown."""
    if in_flight is None:
        return "an unknown number (the server does not respond)"
    return ", ".join(f"{count} in {engine}" for engine, count in in_flight.items())
