"""Options of a command that come from options classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner, Result

from trtllm_serve_cli.cli.shared.option_signature import (
    OptionValues,
    builds_options,
    parse_pairs,
    takes_options,
)
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.option_fields import Option, Within, option_fields


def check_even(value: int) -> None:
    if value % 2:
        raise ValueError(f"{value} is odd")


@dataclass(frozen=True)
class Sample:
    name: Annotated[str, Option("A name.", flags=("-n", "--name"))] = "none"
    size: Annotated[int, Within(1), Option("A size.", check=check_even)] = 2
    folder: Annotated[Path | None, Option("A folder.")] = None
    words: Annotated[tuple[str, ...], Option("Words.", flags=("--word",))] = ()
    table: Annotated[Mapping[str, str], Option("A table.", flags=("--param",))] = field(
        default_factory=dict
    )
    loud: Annotated[bool, Option("Be loud.", flags=("--loud",))] = False
    hidden: Annotated[int, Option("Not here.", is_on_command_line=False)] = 1


def run(command: Any, *words: str) -> Result:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command)
    return CliRunner().invoke(app, words)


def test_only_given_options_are_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[OptionValues] = []
    monkeypatch.chdir(tmp_path)

    @takes_options(sample=option_fields(Sample))
    def command(*, sample: OptionValues, other: int = 3) -> None:
        seen.append(sample)

    assert run(command).exit_code == 0
    words = ("-n", "x", "--folder", "a", "--word", "b", "--word", "c", "--param", "k=v", "--loud")
    assert run(command, *words).exit_code == 0
    assert seen == [
        {},
        {
            "name": "x",
            "folder": tmp_path / "a",
            "words": ("b", "c"),
            "table": {"k": "v"},
            "loud": True,
        },
    ]


def test_instance_has_all_options() -> None:
    seen: list[Sample] = []

    @builds_options("sample", Sample)
    def command(*, sample: Sample) -> None:
        seen.append(sample)

    assert run(command, "--size", "4", "--word", "b").exit_code == 0
    assert seen == [Sample(size=4, words=("b",))]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--size", "3"), "3 is odd"),
        (("--size", "0"), "0 is not in the range"),
        (("--hidden", "1"), "No such option"),
    ],
)
def test_wrong_use_is_refused(words: tuple[str, ...], why: str) -> None:
    @takes_options(sample=option_fields(Sample))
    def command(*, sample: OptionValues) -> None:
        raise AssertionError

    result = run(command, *words)
    assert (result.exit_code, why in result.output) == (2, True)


def test_help_has_the_defaults_and_the_order_of_the_signature() -> None:
    @takes_options(sample=option_fields(Sample, "name", "size"))
    def command(*, first: int = 1, sample: OptionValues, last: int = 2) -> None:
        """Do it."""

    shown = run(command, "--help").output
    flags = ("--first", "--name", "--size", "--last")
    places = [shown.index(flag) for flag in flags]
    assert places == sorted(places)
    assert "A name. Default: none." in " ".join(shown.split())


@pytest.mark.parametrize("word", ["", "novalue", "=x"])
def test_word_that_is_not_a_pair_is_refused(word: str) -> None:
    with pytest.raises(BadInput, match="does not have the form KEY=VALUE"):
        parse_pairs([word], option="--param ")
