"""Server-sent events, as far as Triton sends them."""

from __future__ import annotations


class EventParser:
    """Takes the bytes of a stream in whatever parts they come; gives the data of each whole event.

    Lines of an event other than `data:` mean nothing here and are skipped; several data lines of
    one event are joined by newlines, as the HTML standard has it.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, received: bytes) -> list[str]:
        """The data of the events that `received` completes."""
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
