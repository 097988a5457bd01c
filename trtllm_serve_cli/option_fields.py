"""Declare options as the annotated fields of a dataclass.

A field annotation contains the option type, an `Option` with the help text and the flags, and the
allowed values. The command line, the JSON schema and the reference pages are generated from these
fields, and `tllm.yaml` is validated with them. Example:

    port: Annotated[int, Option("Port to bind."), PORT] = 8000
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Option:
    """An option's help text and command-line form.

    - `flags`: Typer's parameter declarations, such as "-m" or "--stream/--no-stream". If empty, the
      flag is derived from the field name.
    - `metavar`: placeholder for the value in the help text, or None for the default placeholder.
    - `panel`: title of the option group in the help text, or empty.
    - `check`: function that raises `ValueError` if the option value is invalid.
    - `is_argument`: true for positional arguments.
    - `is_on_command_line`: false for options without a flag, which are set in `tllm.yaml` or with
      `--build-option`.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    panel: str = ""
    check: Callable[[Any], object] | None = None
    is_argument: bool = False
    is_on_command_line: bool = True


@dataclass(frozen=True, slots=True)
class Within:
    """The inclusive minimum and maximum of a number. The maximum is optional."""

    at_least: float
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class OneOf:
    """The allowed values of an option whose choices are known only at run time."""

    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartOf:
    """An annotation for a mapping whose keys must be field names of the dataclass `options`."""

    options: type


@dataclass(frozen=True, slots=True)
class CheckedBy:
    """An annotation for a mapping whose items are validated with `check`.

    `check` receives the key and the value of an item and raises `BadInput` if they are invalid.
    """

    check: Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class OptionField:
    """An option that a dataclass field declares.

    - `kind`: type of the option without `| None`.
    - `is_optional`: true if None is allowed.
    - `default`: default value, or MISSING if the option is required.
    - `choices`: allowed values of a choice option, or empty for other options.
    """

    name: str
    kind: Any
    is_optional: bool
    default: Any
    option: Option
    within: Within | None = None
    choices: tuple[str, ...] = ()
    part_of: PartOf | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """Typer's parameter declarations for the option."""
        return self.option.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def shown_as(self) -> str:
        """The option's name in messages to the user, for example "--max-batch-size".

        For an option without a command-line flag, the name is its field name in `tllm.yaml`.
        """
        return self.flags[-1] if self.option.is_on_command_line else self.name

    @property
    def is_declared(self) -> bool:
        """True if the field has an `Option` with help text, which means that users can set it."""
        return bool(self.option.help)

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def is_table(self) -> bool:
        """True if the option value is a mapping."""
        return get_origin(self.kind) is Mapping

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING


def option_fields(options: type, *names: str) -> tuple[OptionField, ...]:
    """Return the fields of the dataclass `options` in declaration order.

    If `names` are passed, return only the fields with these names.
    """
    hints = get_type_hints(options, include_extras=True)
    return tuple(
        _field(each, hints[each.name])
        for each in dataclasses.fields(options)
        if not names or each.name in names
    )


def split_hint(hint: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """Return the plain type of a type hint, whether it allows None, and its annotations."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *annotations = get_args(hint)
        kind, is_optional, more = split_hint(inner)
        return kind, is_optional, (*annotations, *more)
    if origin in (Union, types.UnionType):
        (inner,) = (each for each in get_args(hint) if each is not type(None))
        kind, _, inner_annotations = split_hint(inner)
        return kind, True, inner_annotations
    return hint, False, ()


def find_annotation(annotations: tuple[Any, ...], kind: type) -> Any:
    """Return the first annotation that is an instance of `kind`, or None."""
    return next((each for each in annotations if isinstance(each, kind)), None)


def _field(field: dataclasses.Field[Any], hint: Any) -> OptionField:
    kind, is_optional, annotations = split_hint(hint)
    one_of = find_annotation(annotations, OneOf)
    choices = get_args(kind) if get_origin(kind) is Literal else one_of.choices if one_of else ()
    factory = field.default_factory
    return OptionField(
        name=field.name,
        kind=kind,
        is_optional=is_optional,
        default=field.default if factory is dataclasses.MISSING else factory(),
        option=find_annotation(annotations, Option) or Option(""),
        within=find_annotation(annotations, Within),
        choices=tuple(choices),
        part_of=find_annotation(annotations, PartOf),
    )
