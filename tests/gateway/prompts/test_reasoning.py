from __future__ import annotations

import pytest

from tests.gateway.prompts.tools.parsing import Parsed, options, parse
from trtllm_serve_cli.gateway.prompts.output_parser import PlainParser
from trtllm_serve_cli.gateway.prompts.reasoning import (
    ReasoningParser,
    ReasoningTags,
    find_reasoning,
)
from trtllm_serve_cli.gateway.prompts.tools.hermes import HermesParser

TAGS = ReasoningTags("<think>", "</think>")


@pytest.mark.parametrize(
    ("text", "is_open", "parsed"),
    [
        ("<think>\nWhy?\n</think>\n\nSo.\n", False, Parsed("So.\n", "Why?")),
        ("Why?\n</think>\n\nSo.", True, Parsed("So.", "Why?")),
        ("<think>\nWhy?</think>So.", True, Parsed("So.", "Why?")),
        ("<think>\n\n</think>\n\nSo.", False, Parsed("So.")),
        ("  So.", False, Parsed("  So.")),
        ("So. <think>", False, Parsed("So. <think>")),
        ("<thin", False, Parsed("<thin")),
        ("<think>\nWhy", False, Parsed("", "Why")),
        ("Why?</thin", True, Parsed("", "Why?</thin")),
        ("", True, Parsed()),
    ],
    ids=[
        "tags",
        "open",
        "repeated",
        "empty",
        "none",
        "later",
        "cut",
        "unfinished",
        "end",
        "nothing",
    ],
)
def test_splits_reasoning_from_content(text: str, is_open: bool, parsed: Parsed) -> None:
    for pieces in ([text], [*text, ""]):
        assert parse(ReasoningParser(TAGS, PlainParser(), is_open=is_open), pieces) == parsed


def test_tool_calls_follow_the_reasoning() -> None:
    text = '<think>Why?</think>\n<tool_call>{"name": "a", "arguments": {}}</tool_call>'
    parser = ReasoningParser(TAGS, HermesParser(options()), is_open=False)
    assert parse(parser, [*text, ""]) == Parsed("", "Why?", [["id0", "a", "{}"]])


@pytest.mark.parametrize(
    ("template", "tags"),
    [
        ("{{ '<think>\n' }}…</think>", TAGS),
        ("[THINK][/THINK]", ReasoningTags("[THINK]", "[/THINK]", True)),
        ("{{ messages }}", None),
    ],
)
def test_template_shows_the_tags(template: str, tags: ReasoningTags | None) -> None:
    assert find_reasoning(template) == tags
