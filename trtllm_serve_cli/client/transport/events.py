"""Parse the server-sent events that Triton sends."""

from __future__ import annotations


class EventParser:
    """An incremental parser: takes the bytes of a stream, and returns the data of complete events.

    Lines other than `data:` are skipped. Several data lines of one event are joined by newlines, as
    in the HTML standard.
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
