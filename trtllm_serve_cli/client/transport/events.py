"""Parse the server-sent events that Triton and OpenAI-compatible servers send."""

from __future__ import annotations


class EventParser:
    """An incremental parser for a stream of server-sent events.

    The parser ignores all fields except `data`. It joins the `data` fields of an event with
    newlines, as the HTML standard requires.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, received: bytes) -> list[str]:
        """Return the data of each event that `received` completes."""
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
