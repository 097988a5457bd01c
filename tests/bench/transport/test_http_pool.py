from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.transport.http_pool import ResponseParser
from trtllm_serve_cli.client.transport.events import EventParser

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
    b'9\r\ndata: {"a\r\n8\r\n": 1}\n\nd\r\n13\r\nata: {"b": [1,2]}\n\n\r\n0\r\n\r\n'
)
WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\nContent-Type: application/json\r\n\r\n{"a": 1}'
FAILED = b'HTTP/1.1 400 Bad Request\r\nContent-Length: 15\r\n\r\n{"error": "no"}'


def _feed(raw: bytes, cuts: list[int]) -> tuple[list[bytes], ResponseParser]:
    parser = ResponseParser()
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    pieces = [raw[begin:end] for begin, end in pairwise(places)]
    return [event for piece in pieces for event in parser.feed(piece)], parser


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=20))
def test_events_do_not_depend_on_packet_boundaries(cuts: list[int]) -> None:
    events, parser = _feed(CHUNKED, cuts)
    assert events == [b'{"a": 1}', b'{"b": [1,2]}']
    assert (parser.is_done, parser.keeps_alive, parser.error) == (True, True, None)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=20))
def test_unstreamed_response_is_one_event(cuts: list[int]) -> None:
    events, parser = _feed(WHOLE, cuts)
    assert (events, parser.is_done) == ([b'{"a": 1}'], True)


def test_failed_request_has_the_servers_message() -> None:
    events, parser = _feed(FAILED, [])
    assert events == []
    assert parser.error is not None
    assert (parser.error.kind, parser.error.message) == ("http_400", "no")


@pytest.mark.parametrize("raw", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 yes\r\n\r\n", b"x" * 70000])
def test_rejects_data_that_is_not_http(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        ResponseParser().feed(raw)


@given(
    events=st.lists(
        st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), max_size=3)
    ),
    cuts=st.lists(st.integers(0, 2000), max_size=30),
    line_end=st.sampled_from(["\n", "\r\n"]),
)
def test_events_are_those_of_the_client(
    events: list[list[str]], cuts: list[int], line_end: str
) -> None:
    """Comments, other fields and several lines of data are allowed between any two packets."""
    lines = []
    for number, event in enumerate(events):
        lines += [": comment", f"id: {number}", *(f"data: x{line}x" for line in event), ""]
    body = "".join(line + line_end for line in lines).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
    received, parser = _feed(head % len(body) + body, cuts)
    assert [each.decode() for each in received] == EventParser().feed(body)
    assert parser.is_done


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no", "code": "x"}}', "no"),
        (b'{"detail": "no"}', "no"),
        (b'data: {"error": "no"}', "no"),
        (b"<html>no</html>", "<html>no</html>"),
    ],
)
def test_failed_requests_have_the_message_of_any_server(body: bytes, message: str) -> None:
    head = b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n" % len(body)
    _, parser = _feed(head + body, [])
    assert parser.error is not None
    assert (parser.error.kind, parser.error.message) == ("http_503", message)
