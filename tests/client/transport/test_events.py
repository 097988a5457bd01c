from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.client.transport.events import EventParser


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"))),
    st.lists(st.integers(1, 40)),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_parses_events_split_at_any_byte(events: list[str], sizes: list[int], end: bytes) -> None:
    stream = b"".join(b"data: " + event.encode() + end + end for event in events)
    parser, parsed = EventParser(), []
    for size in [*sizes, len(stream)]:
        parsed += parser.feed(stream[:size])
        stream = stream[size:]
    assert parsed + parser.feed(stream) == events


def test_other_lines_are_skipped_and_data_lines_joined() -> None:
    assert EventParser().feed(b": hi\nid: 3\ndata:a\ndata: b\n\n\n") == ["a\nb"]


def test_incomplete_event_is_withheld() -> None:
    assert EventParser().feed(b"data: a\n") == []
