"""Define Click groups that import commands on demand, suggest commands and list their summaries.

The help of each command lists its options in groups.

Typer creates the options of all registered commands before it runs any command. `tllm --help` would
spend most of its time creating options, and `tllm bench` the options of 27 commands. So each
command is created when it is used.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.completion import install_callback, show_callback
from typer.core import TyperGroup
from typer.models import CommandInfo, TyperInfo

from trtllm_serve_cli.cli.command_table import COMMAND_GROUPS, SYNONYMS, Command
from trtllm_serve_cli.cli.shared.metavars import set_metavars

# Newer versions of Typer bundle a copy of Click. Use the base class of one of Typer's exceptions,
# so that `except UsageError` matches the class that Typer raises.
UsageError: Any = typer.BadParameter.__base__
_COMMANDS = {command.name: command for group in COMMAND_GROUPS.values() for command in group}
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
_NAME_WIDTH = max(map(len, _COMMANDS))


def walk_commands(group: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the full name and the Click object of each command and subgroup in a group."""
    for name, command in group.commands.items():
        yield (*names, name), command
        if isinstance(command, TyperGroup):
            yield from walk_commands(command, *names, name)


def _import_command(command: Command) -> Any:
    """Import the function or application behind the command and return its Click command."""
    module_name, _, attribute = command.target.partition(":")
    target = getattr(import_module(f"trtllm_serve_cli.cli.{module_name}"), attribute)
    app = typer.Typer()
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=command.name, short_help=command.summary)
        return _make_click_command(app.registered_groups[0])
    app.command(command.name, short_help=command.summary)(target)
    return _make_click_command(app.registered_commands[0])


def _make_click_command(registered: CommandInfo | TyperInfo) -> Any:
    """Return the Click command of a registered command, or the group of an application.

    The group creates its commands on first use.
    """
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    if isinstance(registered, CommandInfo):
        app.registered_commands.append(registered)
    else:
        app.registered_groups.append(_remove_commands(registered))
    made: Any
    (made,) = typer.main.get_group(app).commands.values()
    if isinstance(registered, CommandInfo):
        made.format_options = partial(_write_options, made)
    else:
        made.commands = _LazyCommands(
            {_name_of(each): partial(_make_click_command, each) for each in _list_all(registered)}
        )
    set_metavars(made)
    _require_finite(made)
    return made


def _require_finite(command: Any) -> None:
    """Make a Click command reject `nan` and `inf`. The ranges of options do not exclude them."""
    for parameter in command.params:
        if "float" in parameter.type.name:
            parameter.callback = partial(_check_finite, parameter.callback)


def _check_finite(callback: Any, ctx: Any, parameter: Any, value: float | None) -> Any:
    checked = value if callback is None else callback(ctx, parameter, value)
    if checked is not None and not math.isfinite(checked):
        raise typer.BadParameter(f"{checked} is not a finite number. Pass a finite number.")
    return checked


def _list_all(registered: TyperInfo) -> list[CommandInfo | TyperInfo]:
    """Return the commands and groups of a registered application."""
    target = registered.typer_instance
    assert target is not None
    return [*target.registered_commands, *target.registered_groups]


def _remove_commands(registered: TyperInfo) -> TyperInfo:
    """Return a copy of the application without commands."""
    target, alone = copy(registered.typer_instance), copy(registered)
    assert target is not None
    target.registered_commands, target.registered_groups = [], []
    alone.typer_instance = target
    return alone


def _name_of(registered: CommandInfo | TyperInfo) -> str:
    if registered.name or not isinstance(registered, CommandInfo):
        return str(registered.name)
    assert registered.callback is not None
    return typer.main.get_command_name(registered.callback.__name__)


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the arguments of a Click command, then its options in groups.

    Typer writes option groups only if Rich formats the help. Options without a group are in the
    section "Options", and so is the only option of a group.
    """
    parameters = command.get_params(ctx)
    groups = [getattr(each, "rich_help_panel", None) for each in parameters]
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    for parameter, group in zip(parameters, groups, strict=True):
        if parameter.param_type_name == "argument":
            title = "Arguments"
        else:
            title = group if group and groups.count(group) > 1 else "Options"
        if record := parameter.get_help_record(ctx):
            sections.setdefault(title, []).append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


class _LazyCommands(Mapping[str, Any]):
    """A mapping from names to Click commands that creates each command on first use."""

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self._makers = makers
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class SuggestingGroup(TyperGroup):
    """A group that suggests similar commands for an unknown command.

    Click 8.4 and later add suggestions to the error. Typer's suggestions are used only if Click has
    not added any, so that the error never contains both.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Return the command's name, the command itself, and the remaining arguments in `args`."""
        self.suggest_commands = False
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if "Did you mean" in error.format_message():
                raise
        self.suggest_commands = True
        return super().resolve_command(ctx, args)


class LazyGroup(SuggestingGroup):
    """A group that lists the commands in COMMAND_GROUPS without importing their modules."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        makers = {name: partial(_import_command, each) for name, each in _COMMANDS.items()}
        self.commands = _LazyCommands(makers)  # type: ignore[assignment]  # Click only reads it

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of `tllm`.

        Accept a shell name after --install-completion and --show-completion. Typer itself ignores
        the name and always uses the shell that runs `tllm`.
        """
        match args:
            case ["--install-completion" | "--show-completion" as flag, shell]:
                if shell not in _SHELLS:
                    what = (
                        f"The shell '{shell}' is not supported. Pass one of {', '.join(_SHELLS)}."
                    )
                    raise UsageError(what, ctx)
                call = install_callback if flag.startswith("--install") else show_callback
                call(ctx, None, shell)  # type: ignore[arg-type]  # Typer ignores this argument
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Resolve the command.

        If an unknown name is a synonym of a command, the error names the command.
        """
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if args[0] not in SYNONYMS:
                raise
            what = f"No such command '{args[0]}'. Use `tllm {SYNONYMS[args[0]]}`."
            raise UsageError(what, ctx) from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each command group under the group title.

        Align the summaries of all commands.
        """
        for title, commands in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(each.name.ljust(_NAME_WIDTH), each.summary) for each in commands]
                )


class FullSummaryGroup(SuggestingGroup):
    """A group that lists up to 200 characters of the first sentence of each command's help.

    Click would truncate the sentence earlier.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the group's own options.

        If a command's option precedes the command name, the error shows the correct order, unless
        the group can be invoked without a command.
        """
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            reordered = None if self.invoke_without_command else self._reorder(words)
            if reordered is None:
                raise
            example = f"{ctx.command_path} {shlex.join(reordered)}"
            what = f"Options must follow the command name, for example `{example}`."
            raise UsageError(what, ctx) from error

    def _reorder(self, words: list[str]) -> list[str] | None:
        """Return `words`, preceded by the name of a command that accepts the option `words[0]`.

        Prefer a command whose name is in `words`, and remove the name from its old position. Return
        None if no command accepts the option.
        """
        option = words[0].partition("=")[0] if words else ""
        named = [word for word in words if word in self.commands]
        for name in (*named, *self.commands):
            if any(option in each.opts for each in self.commands[name].params):
                return [name, *(word for word in words if word != name)]
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the name and the first sentence of each command."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(200)) for name, each in self.commands.items()]
            )
