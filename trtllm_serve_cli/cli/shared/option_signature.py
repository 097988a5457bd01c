"""Turn dataclass fields into command-line options.

Typer reads a command's options from the signature of its function. This module adds a parameter to
the signature for each field.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trtllm_serve_cli.option_fields import OptionField, option_fields

# The option values of a group, keyed by field name.
OptionValues = dict[str, Any]


def takes_options(
    **groups: tuple[OptionField, ...],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add option groups to a command, one per keyword argument.

    The command must have a parameter with the same name as each argument. The parameter receives a
    dictionary of the options that the user set. All paths in the dictionary are absolute. `--help`
    lists the options of a group at the position of the group's parameter.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        named = {
            group: {f"{group}_{each.name}": each for each in _on_command_line(fields)}
            for group, fields in groups.items()
        }

        def command(**values: Any) -> None:
            chosen: dict[str, OptionValues] = {group: {} for group in groups}
            for group, fields in named.items():
                for name, field in fields.items():
                    value = values.pop(name)
                    if value not in (None, [], False if _is_switch(field) else None):
                        plain = _plain(field, value)
                        is_path = isinstance(plain, Path)
                        chosen[group][field.name] = plain.absolute() if is_path else plain
            function(**values, **chosen)

        added = {
            group: [_parameter(name, field) for name, field in fields.items()]
            for group, fields in named.items()
        }
        return with_signature(function, command, added)

    return decorate


def builds_options(
    parameter: str,
    options: type,
    *,
    key: Callable[[OptionField], Any] | None = None,
    at_end: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the fields of the dataclass `options` to a command as command-line options.

    The command receives an instance of the class in the parameter named `parameter`. `--help` lists
    the options at the position of this parameter, or after all other options if `at_end` is set.
    The options are in the order of the fields or, if `key` is set, sorted by `key`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        fields = _on_command_line(option_fields(options))
        fields.sort(key=key or (lambda field: 0))

        def command(**values: Any) -> None:
            chosen = {each.name: _plain(each, values.pop(each.name)) for each in fields}
            function(**values, **{parameter: options(**chosen)})

        added = [_parameter(each.name, each, has_default=True) for each in fields]
        if at_end:
            return with_signature(function, command, {parameter: []}, added)
        return with_signature(function, command, {parameter: added})

    return decorate


def with_signature(
    function: Callable[..., None],
    command: Callable[..., None],
    replaced: Mapping[str, list[inspect.Parameter]],
    appended: Sequence[inspect.Parameter] = (),
) -> Callable[..., None]:
    """Return `command` with the name, help and signature of `function`.

    `replaced` maps the name of a parameter of `function` to the parameters that replace it. The
    parameters in `appended` are added at the end of the signature.
    """
    own = [
        new
        for each in inspect.signature(function, eval_str=True).parameters.values()
        for new in replaced.get(each.name, [each])
    ]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *appended)]
    functools.update_wrapper(command, function)
    del vars(command)["__wrapped__"]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _on_command_line(fields: Sequence[OptionField]) -> list[OptionField]:
    return [field for field in fields if field.option.is_on_command_line]


def _is_switch(field: OptionField) -> bool:
    """Return whether the option is a flag without a negative form such as `--no-stream`."""
    return field.kind is bool and not any("/" in flag for flag in field.option.flags)


def _parameter(name: str, field: OptionField, *, has_default: bool = False) -> inspect.Parameter:
    """Return the parameter that declares the option to Typer.

    If `has_default` is not set, the parameter's default is False for a switch and None for all
    other options.
    """
    option, within = field.option, field.within
    settings: dict[str, Any] = {"help": _help(field, has_default=has_default)}
    if option.metavar is not None:
        settings["metavar"] = option.metavar
    elif field.is_table:
        settings["metavar"] = "KEY=VALUE"
    if within is not None:
        settings |= {"min": within.at_least, "max": within.at_most}
    if option.check is not None:
        settings["callback"] = _checked(option.check)
    if option.panel:
        settings["rich_help_panel"] = option.panel
    default = field.default if has_default else False if _is_switch(field) else None
    if isinstance(default, tuple):
        default = list(default) or None
    declared = (
        typer.Argument(**settings) if option.is_argument else typer.Option(*field.flags, **settings)
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[_type(field, is_optional=default is None), declared],
    )


def _type(field: OptionField, *, is_optional: bool) -> Any:
    kind: Any = field.kind
    if field.choices:
        kind = Literal[field.choices]
    elif field.is_list or field.is_table:
        kind = list[str]
    return kind | None if is_optional else kind


def _help(field: OptionField, *, has_default: bool) -> str:
    """Return the option's help text with the default.

    Omit the default if the option is a flag or has no default, or if Typer or the help text already
    shows the default.
    """
    text, default = field.option.help, field.default
    is_stated = "Default:" in text or default in (None, (), {}, dataclasses.MISSING)
    if is_stated or has_default or field.kind is bool:
        return text
    shown = f"{default:g}" if isinstance(default, float) else default
    return f"{text} Default: {shown}."


def _checked(check: Callable[[Any], object]) -> Callable[[Any], Any]:
    def callback(value: Any) -> Any:
        try:
            if value is not None:
                check(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        return value

    return callback


def _plain(field: OptionField, value: Any) -> Any:
    """Convert a value from Typer to the type declared in the options class."""
    if field.is_table:
        return parse_pairs(value, option=f"{field.option.flags[0]} ")
    return tuple(value or ()) if field.is_list else value


def parse_pairs(
    words: list[str], *, option: str, example: str = "enable_kv_cache_reuse=false"
) -> dict[str, str]:
    """Parse KEY=VALUE words into a dictionary.

    Raise `BadInput` if a word is malformed. The error message starts with `option`, and the next
    step contains `example`.
    """
    from trtllm_serve_cli.errors import BadInput

    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise BadInput(
                f"{option}{word!r} does not have the form KEY=VALUE.",
                next_step=f"pass a name and a value, for example {option}{example}",
            )
        pairs[key.strip()] = value.strip()
    return pairs
