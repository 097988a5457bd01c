from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trtllm_serve_cli.gateway.generation.text_stream import (
    TextSequence,
    find_stop,
    len_of_partial_stop,
)
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder

LETTERS = st.text("abc", max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3)


@given(LETTERS, STOPS, st.booleans(), st.integers(1, 5))
def test_text_ends_before_the_first_stop_string(
    text: str, stops: list[str], includes_stop: bool, num_letters: int
) -> None:
    """Read updates with several tokens, as they arrive if the reader is slow."""
    decoder = StreamDecoder(lambda ids: "".join(map(chr, ids)))
    sequence = TextSequence(0, decoder, stops, includes_stop=includes_stop)
    pieces, ids, scores, reason, stop_reason = [], [], [], None, None
    for start in range(0, len(text), num_letters):
        end = min(start + num_letters, len(text))
        update = SequenceUpdate(
            1,
            0,
            tuple(map(ord, text[start:end])),
            finish_reason="length" if end == len(text) else None,
            log_probs=tuple(map(float, range(start, end))),
            top_log_probs=tuple(((each, 0.0),) for each in range(start, end)),
        )
        delta = sequence.push(update)
        pieces.append(delta.text)
        ids += delta.token_ids
        scores += delta.log_probs
        assert [score for ((score, _),) in delta.top_log_probs] == list(delta.log_probs)
        reason, stop_reason = delta.finish_reason, delta.stop_reason
        if sequence.is_ended:
            break
    # The sequence ends as soon as it contains a stop string.
    ends = [end for end in range(len(text) + 1) if find_stop(text[:end], stops)]
    if ends:
        start, stop = find_stop(text[: ends[0]], stops) or (0, "")
        expected = text[: start + len(stop) if includes_stop else start]
        assert ("".join(pieces), reason, stop_reason) == (expected, "stop", stop)
        assert "".join(map(chr, ids)) == text[: ends[0]]
        assert scores == list(range(ends[0]))
        assert sequence.num_tokens == ends[0]
    else:
        assert "".join(pieces) == text
        assert reason == ("length" if text else None)


@given(LETTERS, STOPS)
def test_held_back_text_may_start_a_stop_string(text: str, stops: list[str]) -> None:
    assume(find_stop(text, stops) is None)
    length = len_of_partial_stop(text, stops)
    tails = [text[len(text) - n :] for n in range(1, len(text) + 1)]
    starts = [t for t in tails if any(stop.startswith(t) and stop != t for stop in stops)]
    assert length == max(map(len, starts), default=0)


@pytest.mark.parametrize(("includes_stop", "text"), [(False, "a"), (True, "ac")])
def test_text_ends_before_the_stop_token(includes_stop: bool, text: str) -> None:
    decoder = StreamDecoder(lambda ids: "".join(map(chr, ids)))
    sequence = TextSequence(
        0, decoder, stop_token_ids=frozenset((ord("c"),)), includes_stop=includes_stop
    )
    delta = sequence.push(SequenceUpdate(1, 0, (ord("a"), ord("c")), finish_reason="stop"))
    assert (delta.text, delta.stop_reason) == (text, ord("c"))
