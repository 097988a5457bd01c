"""Test that streamed pieces equal the text decoded in one call, for any tokenizer.

Each function below decodes like one family of tokenizers. The tests draw vocabularies and tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder, TextStream, decode_whole

Decode = Callable[[list[int]], str]

_TEXTS = (
    "你好，世界。龘𠮷",
    "こんにちは、ｶﾀｶﾅ が ぱ",
    "👨‍👩‍👧 🏳️‍🌈 👍🏽 🇩🇪",
    "e\u0301 n\u0303 a\u0308\u0323 \u0915\u094d\u0937\u093f",
    "مرحبا \u200f بالعالم ไทย",
    "Hello,  world.\n\n\tdef f(x):\n        return x \ufffd!",
)
# Plain bytes, lead bytes, continuation bytes, and bytes that are invalid in UTF-8.
_BYTES = st.sampled_from(b"aB \n\x80\x98\x9f\xa0\xbd\xbf\xc0\xc3\xe0\xe4\xed\xef\xf0\xf4\xf5\xff")


def byte_level(errors: str) -> Callable[[Sequence[bytes]], Decode]:
    """Byte-level BPE (GPT-2): tokens are any bytes; invalid ones are replaced or dropped."""

    def family(vocabulary: Sequence[bytes]) -> Decode:
        return lambda ids: b"".join(vocabulary[each] for each in ids).decode(errors=errors)

    return family


def sentence_piece(vocabulary: Sequence[str]) -> Decode:
    """Llama 2's family in SentencePiece: each invalid byte becomes one U+FFFD."""
    return _metaspace(vocabulary, lambda run: run.decode(errors="replace"))


def sentence_piece_all_or_nothing(vocabulary: Sequence[str]) -> Decode:
    """Llama 2's family in Transformers: one invalid byte replaces the run of byte tokens."""

    def decode_run(run: bytes) -> str:
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    return _metaspace(vocabulary, decode_run)


def sentence_piece_stripped(vocabulary: Sequence[str]) -> Decode:
    """T5's family in Python: whitespace is stripped from both ends."""
    decode = sentence_piece(vocabulary)
    return lambda ids: decode(ids).strip()


def sentence_piece_without_leading_space(vocabulary: Sequence[str]) -> Decode:
    """T5's family with only leading whitespace stripped."""
    decode = sentence_piece(vocabulary)
    return lambda ids: decode(ids).lstrip()


def word_piece(vocabulary: Sequence[str]) -> Decode:
    """BERT's family: words are joined by spaces, `##` continues a word."""

    def decode(ids: list[int]) -> str:
        words = [vocabulary[each] for each in ids]
        return "".join(words[:1] + [_continued(word) for word in words[1:]])

    return decode


def _continued(word: str) -> str:
    return word[2:] if word.startswith("##") else f" {word}"


def _metaspace(vocabulary: Sequence[str], decode_run: Callable[[bytes], str]) -> Decode:
    def decode(ids: list[int]) -> str:
        text = ""
        for is_byte, pieces in groupby([vocabulary[each] for each in ids], _is_byte):
            if is_byte:
                text += decode_run(bytes(int(piece[3:5], 16) for piece in pieces))
            else:
                text += "".join(pieces).replace("▁", " ")
        return text.removeprefix(" ")

    return decode


def _is_byte(piece: str) -> bool:
    return re.fullmatch("<0x[0-9A-F]{2}>", piece) is not None


_BYTE_TOKENS = st.lists(_BYTES, max_size=4).map(bytes)
_PIECES = st.one_of(
    st.sampled_from(["▁", "▁▁", "▁a", "b", "▁你", "好", ".", "▁.", "\n", "", "<0x0A>", "<0x20>"]),
    _BYTES.map(lambda byte: f"<0x{byte:02X}>"),
)
_WORDS = st.sampled_from(["a", "##b", "##", ".", "你", "##好", "👍", "##\u0301", ""])
_FAMILIES: dict[str, tuple[Callable[[Any], Decode], st.SearchStrategy[Any]]] = {
    "bytes, broken ones replaced": (byte_level("replace"), _BYTE_TOKENS),
    "bytes, broken ones dropped": (byte_level("ignore"), _BYTE_TOKENS),
    "SentencePiece": (sentence_piece, _PIECES),
    "SentencePiece, stripped": (sentence_piece_stripped, _PIECES),
    "SentencePiece, stripped at the start": (sentence_piece_without_leading_space, _PIECES),
    "WordPiece": (word_piece, _WORDS),
}
_CUTS = st.lists(st.integers(0, 5), max_size=60)


def _stream(decode: Decode, num_tokens: int, cuts: Sequence[int] = ()) -> str:
    """Return the text when the tokens 0, 1, 2 … are pushed `cuts` at a time, then one by one."""
    decoder = StreamDecoder(decode)
    pieces, start = "", 0
    for size in [*cuts, *[1] * num_tokens]:
        pieces += decoder.push(range(start, min(start + size, num_tokens)))
        start += size
    return pieces + decoder.finish()


@pytest.mark.parametrize("name", _FAMILIES)
@settings(max_examples=3 * settings().max_examples)
@given(st.data())
def test_pieces_add_up_to_the_whole_text(name: str, data: st.DataObject) -> None:
    family, tokens = _FAMILIES[name]
    vocabulary = data.draw(st.lists(tokens, max_size=60))
    decode = family(vocabulary)
    streamed = _stream(decode, len(vocabulary), data.draw(_CUTS))
    assert streamed == decode(list(range(len(vocabulary))))


@pytest.mark.parametrize("errors", ["replace", "ignore"])
@given(st.sampled_from(_TEXTS), st.lists(st.integers(1, 5), max_size=90))
def test_text_of_any_script_is_complete_for_any_split_of_its_bytes(
    errors: str, text: str, sizes: list[int]
) -> None:
    data, tokens = text.encode(), []
    for size in [*sizes, *[1] * len(data)]:
        tokens.append(data[:size])
        data = data[size:]
    assert _stream(byte_level(errors)(tokens), len(tokens)) == text


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(_PIECES, max_size=60), _CUTS)
def test_streamed_and_whole_text_agree_for_broken_bytes(
    vocabulary: list[str], cuts: list[int]
) -> None:
    decode = sentence_piece_all_or_nothing(vocabulary)
    whole = decode_whole(decode, list(range(len(vocabulary))))
    assert _stream(decode, len(vocabulary), cuts) == whole


def test_characters_emitted_before_a_broken_byte_stay_complete() -> None:
    tokens = ["a", "<0x0A>", "<0xE4>", "<0xBD>", "<0xA0>", "<0xF0>", "<0x9F>", "b"]
    decode = sentence_piece_all_or_nothing(tokens)
    assert (decode(list(range(8))), _stream(decode, 8)) == ("a" + "\ufffd" * 6 + "b", "a\n你��b")


@pytest.mark.parametrize("name", _FAMILIES)
@given(st.data())
def test_whole_text_is_the_text_of_the_decoder(name: str, data: st.DataObject) -> None:
    family, tokens = _FAMILIES[name]
    vocabulary = data.draw(st.lists(tokens, max_size=60))
    decode, ids = family(vocabulary), list(range(len(vocabulary)))
    assert decode_whole(decode, ids) == decode(ids)


@given(st.lists(st.sampled_from(["a", " ", ".", " .", " n", "'t", " '", "'", " b"]), max_size=40))
def test_a_decoder_that_removes_spaces_loses_nothing_else(tokens: list[str]) -> None:
    def decode(ids: list[int]) -> str:
        text = "".join(tokens[each] for each in ids)
        return text.replace(" .", ".").replace(" ' ", "'").replace(" n't", "n't")

    streamed = _stream(decode, len(tokens))
    assert streamed.replace(" ", "") == "".join(tokens).replace(" ", "")


def test_a_piece_is_emitted_when_its_character_is_complete() -> None:
    tokens = [b"Hi", b" \xe4\xbd", b"\xa0", b"\xf0\x9f", b"\x98", b"\x80!"]
    decoder = StreamDecoder(byte_level("replace")(tokens))
    pieces = [decoder.push([each]) for each in range(len(tokens))]
    assert pieces == ["Hi", "", " 你", "", "", "😀!"]


def test_finish_emits_pending_text_once() -> None:
    decoder = StreamDecoder(byte_level("replace")([b"Hi", b"\xe4\xbd"]))
    pieces = [decoder.push([0, 1]), decoder.finish(), decoder.finish()]
    assert pieces == ["Hi", "\ufffd", ""]


def test_decoded_windows_stay_short_for_long_sequences() -> None:
    lengths = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return " word" * len(ids)

    streamed = _stream(decode, 1000)
    assert (streamed, max(lengths)) == (" word" * 1000, 16)
    # Allow little more than one decode call per token.
    assert len(lengths) < 1100


@pytest.mark.parametrize("name", _FAMILIES)
@settings(max_examples=settings().max_examples // 2)
@given(st.data())
def test_repeated_tokens_are_decoded_in_short_windows(name: str, data: st.DataObject) -> None:
    """A model may repeat an end token, a space or a part of a character until its length limit."""
    family, tokens = _FAMILIES[name]
    # At the start of a text, the text of "##" is "##", so it does not show that it adds no text.
    tokens = tokens.filter(lambda token: token != "##")
    first, last = (data.draw(st.lists(tokens, max_size=3)) for _ in range(2))
    repeated = data.draw(st.lists(tokens, min_size=1, max_size=3))
    vocabulary = [*first, *(repeated * 200)[:200], *last]
    decode, lengths = family(vocabulary), []

    def count_and_decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return decode(ids)

    assert _stream(count_and_decode, len(vocabulary)) == decode(list(range(len(vocabulary))))
    assert sum(lengths) < 40 * len(vocabulary)


def test_repeated_broken_bytes_are_emitted_before_the_end() -> None:
    decoder = StreamDecoder(byte_level("replace")([b"a\xe4"] * 100))
    streamed = decoder.push(range(100))
    assert streamed == "a\ufffd" * (len(streamed) // 2) + "a" * (len(streamed) % 2)
    assert len(streamed) + len(decoder.finish()) == 200
    assert len(streamed) > 160


@pytest.mark.parametrize("token", ["</s>", "\n", "▁", "<0xE4>"])
def test_repeated_tokens_are_predicted_in_short_windows(token: str) -> None:
    tokenizer = sentence_piece([token.replace("</s>", "")] * 500)
    decoder = StreamDecoder(tokenizer)
    lengths = []
    for each in range(500):
        lengths += map(len, decoder.predict_windows([each]))
        decoder.push([each])
    assert max(lengths) <= 32


@pytest.mark.parametrize(
    ("accumulates", "pieces"),
    [(False, ["Hi", "", "\ufffd"]), (True, ["Hi", "Hi", "Hi\ufffd"])],
)
def test_stream_returns_new_text_or_the_whole_text(accumulates: bool, pieces: list[str]) -> None:
    decoder = StreamDecoder(byte_level("replace")([b"Hi", b"\xe4", b"\xbd"]))
    stream = TextStream(decoder, accumulates=accumulates)
    assert [stream.push([0]), stream.push([1]), stream.push([2], is_last=True)] == pieces
    assert stream.finish() == ""


def test_stream_finishes_with_the_text_that_is_held_back() -> None:
    decoder = StreamDecoder(byte_level("replace")([b"Hi", b"\xe4"]))
    stream = TextStream(decoder, accumulates=True)
    assert [stream.push([0, 1]), stream.finish()] == ["Hi", "Hi\ufffd"]
