"""Reject or drop the options of an import that have no effect on its engine kind or source."""

from __future__ import annotations

import dataclasses
from typing import Any

from trtllm_serve_cli.build.engine_options import LIMITS
from trtllm_serve_cli.engine_kinds.kind import EngineKind
from trtllm_serve_cli.engine_kinds.registry import all_kinds
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.option_fields import OptionField, option_fields
from trtllm_serve_cli.sources.engine_source import EngineSource
from trtllm_serve_cli.sources.source import Source

# The options that apply to an engine that is already built, by section.
_OF_BUILT_ENGINES = {
    "model": ("name", "source", "revision"),
    "engine": ("kind",),
    "build": (*LIMITS, "max_beam_width"),
}


def refuse_unused(declaration: Declaration, kind: str, source: Source) -> None:
    """Raise `BadInput` if an option of the `engine` section is set that the kind does not support.

    If the source is an engine, also raise `BadInput` if an option is set that only applies to
    builds.
    """
    for each in _list_foreign(declaration, kind):
        users = [name for name, options in _options_by_kind().items() if each.name in options]
        option, value = each.shown_as, getattr(declaration.engine, each.name)
        raise BadInput(
            f"The {kind} engine kind does not accept {option}.",
            why=f"the option applies only to --engine {' or --engine '.join(users)}",
            next_step=f"omit {option}, or use --engine {users[0]} {option} {value}",
        )
    if isinstance(source, EngineSource) and (unused := _list_of_builds(declaration)):
        options = ", ".join(each.shown_as for fields in unused.values() for each in fields)
        raise BadInput(
            f"{source} does not accept {options}.",
            why="the source is an engine, so nothing is built or downloaded",
            next_step=f"omit {options}, or import the checkpoint with -s hf:ORG/NAME or "
            "-s local:DIR",
        )


def drop_unused(declaration: Declaration, kind: str, source: Source) -> Declaration:
    """Return the declaration without the options that `refuse_unused` rejects.

    Earlier versions of tllm ignored such options, so the manifest of a model may contain them.
    """
    unused = {"engine": _list_foreign(declaration, kind)}
    if isinstance(source, EngineSource):
        unused = _list_of_builds(declaration)
    sections = {
        name: dataclasses.replace(
            getattr(declaration, name), **{each.name: each.default for each in fields}
        )
        for name, fields in unused.items()
    }
    return dataclasses.replace(declaration, **sections)


def _list_foreign(declaration: Declaration, kind: str) -> list[OptionField]:
    """Return the options of the `engine` section that are set but that the kind does not support.

    Options that all kinds support or that only apply to containers are ignored.
    """
    options = _options_by_kind()
    foreign = frozenset().union(*options.values()) - options[kind]
    return [each for each in _list_set(declaration.engine) if each.name in foreign]


def _options_by_kind() -> dict[str, frozenset[str]]:
    return {kind.name: _options_of(kind) for kind in all_kinds()}


def _options_of(kind: EngineKind) -> frozenset[str]:
    folder = () if kind.serves_checkpoints else ("dir",)
    return kind.building.request_options.union(folder)


def _list_of_builds(declaration: Declaration) -> dict[str, list[OptionField]]:
    """Return the options, by section, that are set but have no effect on a built engine."""
    found = {
        section: [
            each for each in _list_set(getattr(declaration, section)) if each.name not in kept
        ]
        for section, kept in _OF_BUILT_ENGINES.items()
    }
    return {section: fields for section, fields in found.items() if fields}


def _list_set(section: Any) -> list[OptionField]:
    """Return the options in a section of a declaration that differ from their defaults."""
    fields = option_fields(type(section))
    return [each for each in fields if getattr(section, each.name) != each.default]
