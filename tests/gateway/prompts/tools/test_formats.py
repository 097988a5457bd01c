from __future__ import annotations

import json
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawn_examples import draw_examples
from tests.gateway.prompts.tools.parsing import Parsed, options, parse, split
from trtllm_serve_cli.choices import ToolParserName
from trtllm_serve_cli.gateway.prompts.output_parser import OutputParser
from trtllm_serve_cli.gateway.prompts.reasoning import ReasoningParser, ReasoningTags
from trtllm_serve_cli.gateway.prompts.tools.forced import CallListParser, NamedCallParser
from trtllm_serve_cli.gateway.prompts.tools.formats import FORMATS, find_format
from trtllm_serve_cli.gateway.prompts.tools.hermes import HermesParser
from trtllm_serve_cli.gateway.prompts.tools.llama3 import Llama3Parser
from trtllm_serve_cli.gateway.prompts.tools.mistral import MistralParser
from trtllm_serve_cli.gateway.prompts.tools.tool_parser import new_mistral_call_id

PARIS = ["id0", "get_weather", '{"city": "Paris"}']
TIME = ["id1", "get_time", "{}"]
XML = """<tool_call>
<function=get_weather>
<parameter=city>
Pa"ris
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>"""


def hermes(name: str, arguments: str, key: str = "arguments") -> str:
    return f'<tool_call>\n{{"name": "{name}", "{key}": {arguments}}}\n</tool_call>'


HERMES = {
    "content": ("Hello, <b>you</b> ", Parsed("Hello, <b>you</b> ")),
    "call": (hermes("get_weather", '{"city": "Paris"}'), Parsed(calls=[PARIS])),
    "content and call": (
        "Let me see.\n" + hermes("get_weather", '{"city": "Paris"}') + "\n",
        Parsed("Let me see.", calls=[PARIS]),
    ),
    "two calls": (
        hermes("get_weather", '{"city": "Paris"}') + "\n" + hermes("get_time", "{}"),
        Parsed(calls=[PARIS, TIME]),
    ),
    "content after a call": (
        hermes("get_weather", '{"city": "Paris"}') + "\n\nDone.",
        Parsed("Done.", calls=[PARIS]),
    ),
    "arguments first": (
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
        Parsed(calls=[PARIS]),
    ),
    "arguments in a string": (
        hermes("get_weather", json.dumps('{"city": "Paris"}')),
        Parsed(calls=[PARIS]),
    ),
    "no arguments": ('<tool_call>{"name": "a"}</tool_call>', Parsed(calls=[["id0", "a", "{}"]])),
    "null": (hermes("a", "null"), Parsed(calls=[["id0", "a", "{}"]])),
    "empty string": (hermes("a", '""'), Parsed(hermes("a", '""'))),
    "false": (hermes("a", "false"), Parsed(hermes("a", "false"))),
    "zero": (hermes("a", "0"), Parsed(hermes("a", "0"))),
    "empty list": (hermes("a", "[]"), Parsed(hermes("a", "[]"))),
    "parameters": (
        hermes("get_weather", '{"city": "Paris"}', "parameters"),
        Parsed(calls=[PARIS]),
    ),
    "line break in a string": (
        hermes("a", '{"x": "1\n2"}'),
        Parsed(calls=[["id0", "a", '{"x": "1\\n2"}']]),
    ),
    "unknown escape": (
        hermes("a", r'{"x": "\d+\'"}'),
        Parsed(calls=[["id0", "a", r'{"x": "\\d+' + "'\"}"]]),
    ),
    "cut off arguments": (
        '<tool_call>{"name": "a", "arguments": {"x": "12',
        Parsed(calls=[["id0", "a", '{"x": "12']]),
    ),
    "cut off name": ('<tool_call>{"name": "get', Parsed('<tool_call>{"name": "get')),
    "cut off end tag": (
        hermes("get_weather", '{"city": "Paris"}')[:-3],
        Parsed(calls=[PARIS]),
    ),
    "no JSON": ("<tool_call>get_time()</tool_call>", Parsed("<tool_call>get_time()</tool_call>")),
    "no JSON in the arguments": (
        " " + hermes("a", "{city: 1}"),
        Parsed(" " + hermes("a", "{city: 1}")),
    ),
    "arguments that become invalid": (
        hermes("a", '{"x": 1, y}'),
        Parsed(calls=[["id0", "a", '{"x": 1, y}}\n']]),
    ),
    "text after the arguments": (
        '<tool_call>{"name": "a", "arguments": {}, oops}</tool_call> End',
        Parsed("End", calls=[["id0", "a", "{}"]]),
    ),
    "another object": (
        '<tool_call>{"city": "Paris"}</tool_call>',
        Parsed('<tool_call>{"city": "Paris"}</tool_call>'),
    ),
    "XML": (XML, Parsed(calls=[["id0", "get_weather", '{"city": "Pa\\"ris", "days": 3}']])),
    "XML with None": (
        XML.replace("\n3\n", "\nNone\n"),
        Parsed(calls=[["id0", "get_weather", '{"city": "Pa\\"ris", "days": null}']]),
    ),
    "XML without arguments": (
        "<tool_call><function=get_time></function></tool_call>",
        Parsed(calls=[["id0", "get_time", "{}"]]),
    ),
    "surrogate in the name": (
        hermes(r"\ud83d", "{}"),
        Parsed(calls=[["id0", "\ufffd", "{}"]]),
    ),
    "surrogate in a string": (
        hermes("a", json.dumps('{"x": "\ud83d"}')),
        Parsed(calls=[["id0", "a", '{"x": "\ufffd"}']]),
    ),
    "surrogate in XML": (
        XML.replace("\n3\n", '\n"\\ud83d"\n'),
        Parsed(calls=[["id0", "get_weather", '{"city": "Pa\\"ris", "days": "\ufffd"}']]),
    ),
    "other XML": ("<tool_call><a></tool_call>", Parsed("<tool_call><a></tool_call>")),
}
LLAMA3 = {
    "content": ("Hello {you}", Parsed("Hello {you}")),
    "call": ('{"name": "get_weather", "parameters": {"city": "Paris"}}', Parsed(calls=[PARIS])),
    "type": (
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
        Parsed(calls=[PARIS]),
    ),
    "two calls": (
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; '
        '{"name": "get_time", "parameters": {}}',
        Parsed(calls=[PARIS, TIME]),
    ),
    "tag": (
        'Sure. <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}',
        Parsed("Sure.", calls=[PARIS]),
    ),
    "code": ("<|python_tag|>print(1)", Parsed("print(1)")),
    "other object": ('{"answer": [1, {"a": 2}]}', Parsed('{"answer": [1, {"a": 2}]}')),
    "unknown tool": (
        ' {"name": "Bob", "parameters": {}}\n',
        Parsed(' {"name": "Bob", "parameters": {}}\n'),
    ),
    "object after content": ('x {"name": "get_time"}', Parsed('x {"name": "get_time"}')),
    "content after a call": (
        '{"name": "get_weather", "parameters": {"city": "Paris"}}\nDone.',
        Parsed("Done.", calls=[PARIS]),
    ),
}
MISTRAL = {
    "content": ("Hello [you]", Parsed("Hello [you]")),
    "array": (
        'OK[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "get_time", "arguments": {}}]',
        Parsed("OK", calls=[PARIS, TIME]),
    ),
    "names": (
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}',
        Parsed(calls=[PARIS, TIME]),
    ),
    "names without a tag": ('[TOOL_CALLS]get_weather{"city": "Paris"}', Parsed(calls=[PARIS])),
    "call id": (
        "[TOOL_CALLS]get_time[CALL_ID]abcDEF123[ARGS]{}",
        Parsed(calls=[["abcDEF123", "get_time", "{}"]]),
    ),
    "no JSON": ("[TOOL_CALLS] I cannot call.", Parsed(" I cannot call.")),
    "empty array": ("[TOOL_CALLS][]", Parsed("[]")),
    "cut off": ("[TOOL_CALLS]get_wea", Parsed("get_wea")),
}
CASES = [
    *(("hermes", name, *case) for name, case in HERMES.items()),
    *(("llama3", name, *case) for name, case in LLAMA3.items()),
    *(("mistral", name, *case) for name, case in MISTRAL.items()),
]


@pytest.mark.parametrize(
    ("format_name", "text", "parsed"),
    [(each[0], *each[2:]) for each in CASES],
    ids=[" ".join(each[:2]) for each in CASES],
)
def test_parses_the_same_output_from_whole_text_and_characters(
    format_name: str, text: str, parsed: Parsed
) -> None:
    new_parser = FORMATS[format_name].new_parser
    assert parse(new_parser(options()), [text]) == parsed
    assert parse(new_parser(options()), [*text, ""]) == parsed


@pytest.mark.parametrize(
    ("format_name", "text"),
    [
        ("hermes", hermes("get_weather", '{"city": "Paris"}') + hermes("get_time", "{}")),
        ("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}[TOOL_CALLS]get_time{}'),
    ],
)
def test_returns_only_the_first_call_without_parallel_calls(format_name: str, text: str) -> None:
    parser = FORMATS[format_name].new_parser(options(allows_several=False))
    assert parse(parser, [*text, ""]) == Parsed(calls=[PARIS])


def test_arguments_arrive_in_pieces() -> None:
    parser = HermesParser(options())
    deltas = [
        parser.push(text, is_last=False).tool_calls
        for text in ('<tool_call>{"name": "a", "arguments": {"x": "1', "2", '3"', "}}")
    ]
    assert [[call.arguments for call in calls] for calls in deltas] == [
        ['{"x": "1'],
        ["2"],
        ['3"'],
        ["}"],
    ]


def test_named_call_parses_arguments() -> None:
    parser = NamedCallParser(options(), "get_weather")
    assert parse(parser, [*'\n{"city": "Paris"}\n', ""]) == Parsed(calls=[PARIS])


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "get_time", "arguments": {}}]',
    ],
)
def test_call_list_parses_all_calls(text: str) -> None:
    assert parse(CallListParser(options()), [*text, ""]) == Parsed(calls=[PARIS, TIME])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>\n{{ tool_call | tojson }}", "hermes"),
        ("{{ '<|python_tag|>' }}", "llama3"),
        (
            '{"name": function name, "parameters": dictionary of argument name and its value}',
            "llama3",
        ),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ("<tool_call>{name}\n<arg_key>", None),
        ("{{ messages }}", None),
    ],
)
def test_template_shows_the_format(template: str, name: str | None) -> None:
    found = find_format(template)
    assert (found.name if found else None) == name


def test_options_list_the_formats() -> None:
    assert sorted(get_args(ToolParserName)) == sorted(FORMATS)


def test_mistral_ids_have_nine_letters_and_digits() -> None:
    id = new_mistral_call_id()
    assert len(id) == 9
    assert id.isalnum()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
CUTS = st.lists(st.integers(0, 300), max_size=12)
WRITERS: dict[str, Callable[[str], str]] = {
    "hermes": lambda text: f'<tool_call>{{"name": "get_time", "arguments": {text}}}</tool_call>',
    "llama3": lambda text: f'{{"name": "get_time", "parameters": {text}}}',
    "mistral": lambda text: f"[TOOL_CALLS]get_time[ARGS]{text}",
}


@pytest.mark.parametrize("format_name", WRITERS)
@given(arguments=ARGUMENTS, indent=st.sampled_from([None, 2]), ascii=st.booleans(), cuts=CUTS)
def test_arguments_are_the_written_json(
    format_name: str, arguments: object, indent: int | None, ascii: bool, cuts: list[int]
) -> None:
    written = json.dumps(arguments, indent=indent, ensure_ascii=ascii)
    text = WRITERS[format_name](written)
    parsed = parse(FORMATS[format_name].new_parser(options()), split(text, cuts))
    assert [call[:2] for call in parsed.calls] == [["id0", "get_time"]]
    assert json.loads(parsed.calls[0][2]) == arguments
    assert parsed.content == ""


TAGS = ReasoningTags("<think>", "</think>")
PARSERS: dict[str, Callable[[], OutputParser]] = {
    "hermes": lambda: HermesParser(options()),
    "llama3": lambda: Llama3Parser(options()),
    "mistral": lambda: MistralParser(options()),
    "list": lambda: CallListParser(options()),
    "named": lambda: NamedCallParser(options(), "get_time"),
    "reasoning": lambda: ReasoningParser(TAGS, HermesParser(options()), is_open=False),
    "open reasoning": lambda: ReasoningParser(TAGS, Llama3Parser(options()), is_open=True),
}
FRAGMENTS = (
    *("<tool_call>", "</tool_call>", "<function=get_time>", "<parameter=x>", "</parameter>"),
    *("</function>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "get_time", "[", "]"),
    *('{"name": "get_time", "arguments": {"a": 1}}', '"name": "get_time"', '"parameters": ', "{}"),
    *("{", "}", ",", ":", ";", '"', "\\", "\\u12", "null", "1.5e", " ", "\n", "x", "é", "<"),
    *("<think>", "</think>", "<th", "[{", '"arguments": {"x": "', '{"x": ', '"type": "function"'),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


def test_examples_include_each_fragment() -> None:
    drawn = draw_examples(TEXTS, factor=2)
    assert [each for each in FRAGMENTS if not any(each in text for text in drawn)] == []


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=2 * settings().max_examples)
@given(text=TEXTS, cuts=CUTS)
def test_output_does_not_depend_on_the_pieces(name: str, text: str, cuts: list[int]) -> None:
    whole = parse(PARSERS[name](), [text])
    assert parse(PARSERS[name](), split(text, cuts)) == whole
    assert parse(PARSERS[name](), [*text, ""]) == whole


@pytest.mark.parametrize("name", ["hermes", "mistral", "reasoning"])
@given(text=st.text(alphabet="ab <>{}\n", max_size=40), cuts=CUTS)
def test_text_without_tags_is_content(name: str, text: str, cuts: list[int]) -> None:
    assert parse(PARSERS[name](), split(text, cuts)) == Parsed(text)
