"""Test that many streams are decoded with few tokenizer calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder
from trtllm_serve_cli.runtime.text.step_decoder import StepDecoder

# Tokens are bytes, some of them parts of characters.
_BYTES = st.sampled_from(b"aB \xc3\xa9\xe2\x82\xac\xff")
_STEPS = st.lists(st.lists(st.lists(_BYTES, max_size=3), min_size=3, max_size=3))


class Tokenizer:
    def __init__(self) -> None:
        self.num_calls = 0

    def decode_all(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        self.num_calls += 1
        return [bytes(each).decode(errors="replace") for each in sequences]


def _push(
    decoder: StepDecoder, streams: Sequence[StreamDecoder], step: Sequence[Sequence[int]]
) -> list[str]:
    decoder.decode_ahead([SequenceUpdate(7, index, tuple(ids)) for index, ids in enumerate(step)])
    return [stream.push(ids) for stream, ids in zip(streams, step, strict=True)]


@given(steps=_STEPS)
def test_decoding_ahead_does_not_change_the_pieces(steps: list[list[list[int]]]) -> None:
    decoder = StepDecoder(Tokenizer().decode_all)
    streams = [decoder.open_stream(7, index) for index in range(3)]
    alone = [StreamDecoder(lambda ids: Tokenizer().decode_all([ids])[0]) for _ in range(3)]
    for step in steps:
        expected = [stream.push(ids) for stream, ids in zip(alone, step, strict=True)]
        assert _push(decoder, streams, step) == expected
    assert [each.finish() for each in streams] == [each.finish() for each in alone]


@pytest.mark.parametrize("num_tokens", [1, 3, 20])
def test_a_step_of_many_streams_makes_one_call(num_tokens: int) -> None:
    tokenizer = Tokenizer()
    decoder = StepDecoder(tokenizer.decode_all)
    streams = [decoder.open_stream(7, index) for index in range(20)]
    for first in range(40, 100, num_tokens):
        step = [range(first + index, first + index + num_tokens) for index in range(20)]
        _push(decoder, streams, [[token_id % 127 for token_id in each] for each in step])
    assert tokenizer.num_calls == len(range(40, 100, num_tokens))


# Byte-level tokens: parts of characters, several characters, and both. "" is a special token.
_TOKENS = (
    b"a",
    b" the",
    b"",
    b"\xc3",
    b"\xa9",
    b"\xc3\xa9",
    b"b\xe2\x82",
    b"\xac",
    b"\xe2",
    b"\xff",
)
_IDS = st.sampled_from(range(len(_TOKENS)))
_UNFINISHED = frozenset((3, 6, 8))


class ByteLevelTokenizer:
    """A tokenizer that replaces or omits incomplete characters, and records what it decodes."""

    def __init__(self, errors: str) -> None:
        self.errors = errors
        self.decoded: list[list[int]] = []

    def decode_all(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        self.decoded += map(list, sequences)
        joined = (b"".join(_TOKENS[each] for each in ids) for ids in sequences)
        return [each.decode(errors=self.errors) for each in joined]


@pytest.mark.parametrize("errors", ["replace", "ignore"])
@given(steps=st.lists(st.lists(st.lists(_IDS, max_size=3), min_size=3, max_size=3)))
def test_texts_of_tokens_do_not_change_the_pieces(
    errors: str, steps: list[list[list[int]]]
) -> None:
    tokenizer = ByteLevelTokenizer(errors)
    unfinished_ids = _UNFINISHED if errors == "ignore" else frozenset[int]()
    decoder = StepDecoder(tokenizer.decode_all, unfinished_ids)
    streams = [decoder.open_stream(7, index) for index in range(3)]
    alone = [StreamDecoder(lambda ids: tokenizer.decode_all([ids])[0]) for _ in range(3)]
    for step in steps:
        expected = [stream.push(ids) for stream, ids in zip(alone, step, strict=True)]
        assert _push(decoder, streams, step) == expected
    assert [each.finish() for each in streams] == [each.finish() for each in alone]


def test_a_byte_level_token_is_decoded_once() -> None:
    tokenizer = ByteLevelTokenizer("replace")
    decoder = StepDecoder(tokenizer.decode_all, frozenset())
    streams = [decoder.open_stream(7, index) for index in range(3)]
    for step in ([[0], [1], [0]], [[1], [5], [0]], [[5], [5], [5]]):
        _push(decoder, streams, step)
    assert sorted(tokenizer.decoded) == [[0], [1], [5]]


def test_a_closed_stream_is_not_decoded() -> None:
    tokenizer = Tokenizer()
    decoder = StepDecoder(tokenizer.decode_all)
    streams = [decoder.open_stream(7, index) for index in range(2)]
    del streams
    decoder.decode_ahead([SequenceUpdate(7, index, (97,)) for index in range(2)])
    assert tokenizer.num_calls == 0
