from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.option_fields import Within
from trtllm_serve_cli.yaml_schema import parse_text_fields, parse_yaml, plain_changes, render_yaml


@dataclass(frozen=True, slots=True)
class Inner:
    kind: Literal["auto", "none"] = "auto"
    count: int | None = None
    words: tuple[str, ...] = ()
    port: Annotated[int, Within(1, 65535)] | None = None


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    rate: Annotated[float, Within(0)] = 1.0
    is_on: bool = False
    path: Path | None = None
    table: Mapping[str, str] = field(default_factory=dict)


def parse(text: str) -> Outer:
    return parse_yaml(Outer, text, where="a.yaml")


def test_every_kind_of_field_is_read():
    text = """
        name: 1.10
        inner: {kind: none, count: 3, words: [a, b]}
        rate: 2
        is_on: true
        path: x/y
        table: {one: 0.90, two: true}
    """
    assert parse(text) == Outer(
        name="1.10",
        inner=Inner("none", 3, ("a", "b")),
        rate=2.0,
        is_on=True,
        path=Path("x/y"),
        table={"one": "0.90", "two": "true"},
    )


def test_missing_fields_have_defaults():
    assert parse("name: m") == Outer("m")
    assert parse("name: m\npath: null\ninner: {words: alone}").inner.words == ("alone",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml, line 1: the file is empty."),
        ("name: [", "a.yaml, line 1: the file is not valid YAML"),
        ("\x00", "a.yaml is not valid YAML."),
        ("- a", "a.yaml, line 1: the file must be a mapping, but is a list."),
        ("rate: 1", "a.yaml, line 1: name is missing."),
        ("name:\n  a: b", "a.yaml, line 2: name must be a string, but is a mapping."),
        ("name: null", "a.yaml, line 1: name must be a string, but is 'null'."),
        ("name: m\nnmae: x", "a.yaml, line 2: 'nmae' is not a known field."),
        ("name: m\n\nname: m", "a.yaml, line 3: name is already set on line 1."),
        ("name: m\ninner:\n  kind: no", "a.yaml, line 3: inner.kind has an invalid value 'no'."),
        ("name: m\ninner:\n  kind: []", "a.yaml, line 3: inner.kind has an invalid value."),
        (
            "name: m\ninner: {count: 1.5}",
            "a.yaml, line 2: inner.count must be a whole number, but is '1.5'.",
        ),
        ("name: m\ninner: {port: 65536}", "a.yaml, line 2: inner.port is out of range (65536)."),
        (
            "name: m\ninner: {port: any}",
            "a.yaml, line 2: inner.port must be a whole number, but is 'any'.",
        ),
        ("name: m\nrate: -0.1", "a.yaml, line 2: rate is out of range (-0.1)."),
        ("name: m\nrate: any", "a.yaml, line 2: rate must be a finite number, but is 'any'."),
        ("name: m\nrate: nan", "a.yaml, line 2: rate must be a finite number, but is 'nan'."),
        ("name: m\nrate: inf", "a.yaml, line 2: rate must be a finite number, but is 'inf'."),
        ("name: m\nrate: .inf", "a.yaml, line 2: rate must be a finite number, but is '.inf'."),
        ("name: m\nrate: 1e999", "a.yaml, line 2: rate must be a finite number, but is '1e999'."),
        ("name: m\nis_on: 1", "a.yaml, line 2: is_on must be true or false, but is '1'."),
        ("name: m\ntable: {a: [b]}", "a.yaml, line 2: table.a must be a string, but is a list."),
        (
            "name: m\n? [a]\n: b",
            "a.yaml, line 2: each key of the file must be a string, but a key is a list.",
        ),
    ],
)
def test_error_names_the_line(text: str, message: str):
    with pytest.raises(BadInput) as caught:
        parse(text)
    assert caught.value.what.startswith(message)


def test_deep_nesting_is_refused():
    with pytest.raises(BadInput, match="is nested too deeply"):
        parse("name: " + "[" * 20_000 + "]" * 20_000)


def test_error_states_the_range_of_a_number():
    assert parse("name: m\ninner: {port: 65535}").inner.port == 65535
    assert parse("name: m\ninner: {port: null}").inner.port is None
    for text, message in (("inner: {port: 0}", "from 1 to 65535"), ("rate: -1", "of at least 0")):
        with pytest.raises(BadInput) as caught:
            parse(f"name: m\n{text}")
        assert caught.value.next_step == f"set a number {message}"


def test_near_names_are_suggested():
    with pytest.raises(BadInput) as caught:
        parse("name: m\ninner: {wrods: a}")
    assert caught.value.next_step == "use words instead"


def test_fields_are_read_from_the_command_line():
    words = {"kind": "none", "count": "3", "words": "a, b"}
    assert parse_text_fields(Inner, words, where="--x") == {
        "kind": "none",
        "count": 3,
        "words": ("a", "b"),
    }
    with pytest.raises(BadInput, match=r"^--x: port is out of range"):
        parse_text_fields(Inner, {"port": "0"}, where="--x")
    with pytest.raises(BadInput, match=r"^--x: count must be a whole number, but is 'many'"):
        parse_text_fields(Inner, {"count": "many"}, where="--x")


def test_only_what_differs_from_the_defaults_is_written():
    assert plain_changes(Outer("m", Inner(words=("a",)), path=Path("p"))) == {
        "name": "m",
        "inner": {"words": ["a"]},
        "path": "p",
    }


_TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")))
_OUTERS = st.builds(
    Outer,
    name=_TEXTS,
    inner=st.builds(
        Inner,
        kind=st.sampled_from(["auto", "none"]),
        count=st.none() | st.integers(),
        words=st.lists(_TEXTS, max_size=3).map(tuple),
    ),
    rate=st.floats(0, allow_nan=False, allow_infinity=False),
    is_on=st.booleans(),
    table=st.dictionaries(_TEXTS, _TEXTS, max_size=3),
)


@given(_OUTERS)
def test_written_file_is_read_back(outer: Outer):
    assert parse(render_yaml(outer)) == outer
