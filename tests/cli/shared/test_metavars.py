"""Names of values in help texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import typer
from typer.core import TyperArgument, TyperOption

from trtllm_serve_cli.cli.command_groups import walk_commands
from trtllm_serve_cli.cli.main import app
from trtllm_serve_cli.cli.shared.metavars import set_metavars


def name_of(type_name: str, kind: str = "option", **settings: Any) -> str:
    """Return the name in the help of a parameter that Typer declares with the type's name."""
    parameter = SimpleNamespace(
        param_type_name=kind,
        name="size",
        opts=["--size"],
        metavar=settings.pop("metavar", None),
        required=settings.pop("required", True),
        type=SimpleNamespace(name=type_name, **settings),
    )
    set_metavars(SimpleNamespace(params=[parameter]))
    return str(parameter.make_metavar(ctx=None))  # type: ignore[attr-defined]  # set above


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("integer", "int"), "INTEGER"),
        (("integer range", "int range"), "INTEGER RANGE"),
        (("float range",), "FLOAT RANGE"),
        (("text", "str"), "TEXT"),
        (("filename",), "FILENAME"),
    ],
)
def test_types_have_the_same_name_in_all_versions(names: tuple[str, ...], shown: str) -> None:
    assert {name_of(each) for each in names} == {shown}


def test_choices_and_declared_names() -> None:
    assert name_of("choice", choices=("a", "b")) == "[a|b]"
    assert name_of("text", metavar="FILE") == "FILE"


def test_choices_that_do_not_fit_are_part_of_the_help() -> None:
    choices = [f"method_{number}" for number in range(9)]
    option = SimpleNamespace(
        param_type_name="option",
        name="kv_method",
        opts=["--kv-method"],
        metavar=None,
        help="How.",
        type=SimpleNamespace(name="choice", choices=choices),
    )
    for _ in range(2):
        set_metavars(SimpleNamespace(params=[option]))
    assert option.make_metavar(ctx=None) == "KV-METHOD"  # type: ignore[attr-defined]  # set above
    assert option.help == f"How. Choices: {', '.join(choices)}."


def test_help_fits_into_80_columns() -> None:
    for path, command in walk_commands(typer.main.get_command(app)):
        context = command.context_class(command, info_name="tllm", terminal_width=80)
        lines = command.get_help(context).splitlines()
        assert (path, [line for line in lines if len(line) > 80]) == (path, [])


def test_optional_arguments_are_in_brackets() -> None:
    assert name_of("text", "argument") == "SIZE"
    assert name_of("text", "argument", required=False) == "[SIZE]"
    assert name_of("text", "argument", metavar="[NAME]", required=False) == "[NAME]"


def test_help_has_no_name_from_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_metavar(*words: object, **settings: object) -> NoReturn:
        raise AssertionError(words)

    for kind in (TyperArgument, TyperOption):
        monkeypatch.setattr(kind, "make_metavar", make_metavar)
    for _, command in walk_commands(typer.main.get_command(app)):
        assert "--help" in command.get_help(command.context_class(command))
