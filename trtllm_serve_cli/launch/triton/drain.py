"""How requests are kept from joining those in flight, which are to end.

Triton does not count what a decoupled Python model still answers, so a server that is to end is
drained before it is told: its models refuse what comes, and their engines say what they still have
(`look.watch_in_flight`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# As runtime/triton/drain_check.py has it, which looks there for a file of its model's name.
_VARIABLE = "TLLM_DRAINING"
_FOLDER = "draining"


def drain_environ(directory: Path) -> dict[str, str]:
    """Where the models of the server in `directory` look: a folder that `clear_drains` makes."""
    return {_VARIABLE: str(directory / _FOLDER)}


@contextlib.contextmanager
def draining(directory: Path, models: Iterable[str]) -> Iterator[None]:
    """Meanwhile `models`, Triton's, take no new requests."""
    folder = directory / _FOLDER
    markers = [folder / model for model in models]
    try:
        # On a full disk there is no room for it, and they go on taking some.
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            for marker in markers:
                marker.touch()
        yield
    finally:
        for marker in markers:
            marker.unlink(missing_ok=True)


def clear_drains(directory: Path) -> None:
    """Let the models in `directory` take requests, where whoever drained them was killed.

    The folder stays, or is made: a container has it mounted.
    """
    # On a full disk there is nothing to forget, unless it is there.
    with contextlib.suppress(OSError):
        (directory / _FOLDER).mkdir(exist_ok=True)
    for marker in (directory / _FOLDER).glob("*"):
        marker.unlink(missing_ok=True)


def format_in_flight(in_flight: Mapping[str, int] | None) -> str:
    """The counts for people; None: nobody knows them."""
    if in_flight is None:
        return "an unknown number, since the server does not answer"
    return ", ".join(f"{count} in {engine}" for engine, count in in_flight.items())
