from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.fakes import LetterTokenizer
from trtllm_serve_cli.gateway.generation.text_stream import TextDelta
from trtllm_serve_cli.gateway.prompts.output_blocks import BlockEvent, BlockReader
from trtllm_serve_cli.gateway.prompts.output_parser import OutputDelta, ToolCallDelta


class ScriptedParser:
    """A parser that returns outputs in the given order, without regard to the text."""

    def __init__(self, outputs: Sequence[OutputDelta]) -> None:
        self._outputs = iter(outputs)

    def push(self, text: str, *, is_last: bool) -> OutputDelta:
        return next(self._outputs)


def read(*outputs: OutputDelta) -> tuple[BlockReader, list[BlockEvent]]:
    reader = BlockReader(ScriptedParser(outputs))
    last = len(outputs) - 1
    deltas = [
        TextDelta(0, finish_reason="stop" if number == last else None)
        for number in range(len(outputs))
    ]
    return reader, [event for each in deltas for event in reader.push(each)]


def call(index: int, arguments: str = "", *, is_first: bool = True) -> OutputDelta:
    id, name = (f"id{index}", f"name{index}") if is_first else (None, None)
    return OutputDelta(tool_calls=(ToolCallDelta(index, id, name, arguments),))


def test_blocks_are_in_the_order_of_generation() -> None:
    reader, events = read(
        OutputDelta("a", "hm"), call(0, "{"), call(0, "}", is_first=False), call(1), OutputDelta()
    )
    kinds = [(each.kind, each.id, each.name, each.text) for each in reader.blocks]
    assert kinds == [
        ("reasoning", "", "", "hm"),
        ("text", "", "", "a"),
        ("call", "id0", "name0", "{}"),
        ("call", "id1", "name1", ""),
    ]
    assert [(each.kind, each.block.index) for each in events][-4:] == [
        ("added", 2),
        ("closed", 2),
        ("opened", 3),
        ("closed", 3),
    ]
    assert reader.has_calls


def test_end_of_a_call_precedes_the_text_after_it() -> None:
    end = ToolCallDelta(0, arguments="}")
    following = ToolCallDelta(1, "id1", "name1", "{}")
    reader, _ = read(call(0, "{"), OutputDelta("then", tool_calls=(end, following)))
    assert [(each.kind, each.text) for each in reader.blocks] == [
        ("call", "{}"),
        ("text", "then"),
        ("call", "{}"),
    ]


def test_empty_output_has_no_blocks() -> None:
    reader, events = read(OutputDelta(), OutputDelta())
    assert (reader.blocks, events, reader.finish_reason) == ([], [], "stop")


def test_stop_string_is_the_stop_sequence_and_a_stop_token_is_not() -> None:
    for reason, expected in (("END", "END"), (7, None)):
        reader = BlockReader(ScriptedParser([OutputDelta("a")]))
        reader.push(TextDelta(0, finish_reason="stop", stop_reason=reason))
        assert reader.stop_sequence == expected


def test_reasoning_tokens() -> None:
    reader, _ = read(OutputDelta(reasoning="hm"), OutputDelta("abc", "m"))
    assert reader.count_reasoning_tokens(LetterTokenizer()) == 3


texts = st.text("ab", max_size=3)


@given(st.lists(st.tuples(texts, texts, st.sampled_from(("", "new", "same"))), min_size=1))
def test_events_open_extend_and_close_one_block_at_a_time(
    steps: list[tuple[str, str, str]],
) -> None:
    outputs, num_calls, is_open = [], 0, False
    for content, reasoning, kind in steps:
        calls: tuple[ToolCallDelta, ...] = ()
        if kind == "same" and is_open and not reasoning:
            calls = (ToolCallDelta(num_calls - 1, arguments="x"),)
        elif kind == "new":
            calls = (ToolCallDelta(num_calls, "id", "name", "x"),)
            num_calls += 1
        is_open = kind == "new" or (is_open and not reasoning and not content)
        outputs.append(OutputDelta(content, reasoning, calls))
    reader, events = read(*outputs)
    received = ["" for _ in reader.blocks]
    opened: list[int] = []
    current: int | None = None
    for event in events:
        index = event.block.index
        if event.kind == "opened":
            assert current is None
            current = index
            opened.append(index)
        assert current == index
        if event.kind == "added":
            received[index] += event.text
        elif event.kind == "closed":
            current = None
    assert current is None
    assert opened == list(range(len(reader.blocks)))
    assert received == [each.text for each in reader.blocks]
    for kind, text in (
        ("text", "".join(each.content for each in outputs)),
        ("reasoning", "".join(each.reasoning for each in outputs)),
        ("call", "".join(part.arguments for each in outputs for part in each.tool_calls)),
    ):
        assert "".join(each.text for each in reader.blocks if each.kind == kind) == text
    assert sum(each.kind == "call" for each in reader.blocks) == num_calls
