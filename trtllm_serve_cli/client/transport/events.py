"""Parse the server-sent events that Triton sends."""

from __future__ import annotations


class EventParser:
    """An incremental parser for a stream of server-sent events.

    It skips lines other than `data:`, and joins the data lines of an event by newlines, as the HTML
    standard requires.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, received: bytes) -> list[str]:
        """Return the data of the events that `received` completes."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        events = []
        for line in lines:
            text = line.rstrip(b"\r").decode(errors="replace")
            if text.startswith("data:"):
                self._data.append(text.removeprefix("data:").removeprefix(" "))
            elif not text and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events
