"""Options declared as the annotated fields of a dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from trtllm_serve_cli.option_fields import (
    OneOf,
    Option,
    OptionField,
    PartOf,
    Within,
    option_fields,
)

HELP = Option("Such.")
Small = Annotated[int, Within(1, 9)]


@dataclass(frozen=True)
class Inner:
    size: Annotated[int, HELP] = 1


@dataclass(frozen=True)
class Sample:
    name: Annotated[str, HELP]
    size: Annotated[Small | None, HELP] = None
    kind: Annotated[Literal["a", "b"], HELP] = "a"
    word: Annotated[str | None, OneOf(("x", "y")), HELP] = None
    files: Annotated[tuple[Path, ...], HELP] = ()
    table: Annotated[Mapping[str, str], HELP] = field(default_factory=dict)
    part: Annotated[Mapping[str, int], PartOf(Inner)] = field(default_factory=dict)
    plain: bool = False


FIELDS = {
    "name": OptionField("name", str, False, dataclasses.MISSING, HELP),
    "size": OptionField("size", int, True, None, HELP, Within(1, 9)),
    "kind": OptionField("kind", Literal["a", "b"], False, "a", HELP, choices=("a", "b")),
    "word": OptionField("word", str, True, None, HELP, choices=("x", "y")),
    "files": OptionField("files", tuple[Path, ...], False, (), HELP),
    "table": OptionField("table", Mapping[str, str], False, {}, HELP),
    "part": OptionField("part", Mapping[str, int], False, {}, Option(""), part_of=PartOf(Inner)),
    "plain": OptionField("plain", bool, False, False, Option("")),
}


@pytest.mark.parametrize("name", FIELDS)
def test_field_is_read_from_its_annotation(name: str) -> None:
    assert option_fields(Sample, name) == (FIELDS[name],)


def test_fields_come_in_their_order() -> None:
    assert [each.name for each in option_fields(Sample)] == list(FIELDS)


def test_properties_of_a_field() -> None:
    forms = {
        "is_required": ["name"],
        "is_list": ["files"],
        "is_table": ["table", "part"],
        "is_declared": [name for name in FIELDS if name not in ("part", "plain")],
    }
    for form, names in forms.items():
        assert [name for name, each in FIELDS.items() if getattr(each, form)] == names


@pytest.mark.parametrize(
    ("option", "flags", "shown_as"),
    [
        (Option("Such."), ("--num-files",), "--num-files"),
        (Option("Such.", flags=("-n", "--number")), ("-n", "--number"), "--number"),
        (Option("Such.", is_on_command_line=False), ("--num-files",), "num_files"),
    ],
)
def test_option_is_shown_as_users_set_it(
    option: Option, flags: tuple[str, ...], shown_as: str
) -> None:
    field = OptionField("num_files", int, False, 1, option)
    assert (field.flags, field.shown_as) == (flags, shown_as)
