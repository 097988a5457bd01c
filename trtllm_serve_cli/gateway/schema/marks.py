"""Mark request fields that have no effect or are rejected.

The marks are type annotations. If a request sets a field that is marked as rejected, the gateway
rejects the request. `check_rejected` checks the top-level fields, and the `translate` modules check
nested fields. `docs/reference/openai-parameters.md` is generated from the marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from trtllm_serve_cli.gateway.errors import invalid

# Annotation for a field that does not affect generation.
IGNORED = msgspec.Meta(extra={"is_ignored": True})


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason why the gateway rejects a field and the next step for the client.

    The gateway accepts the field if its value is `default`.
    """

    why: str
    next_step: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class Marks:
    """The fields of a request body that the gateway ignores or rejects."""

    ignored: frozenset[str]
    rejected: Mapping[str, Rejection]


# The mark of a nested field: the gateway rejects, ignores or uses the field.
Mark = Rejection | Literal["ignored", "served"]


def rejected(why: str, next_step: str = "Omit it.") -> msgspec.Meta:
    """Return an annotation for a field that requests must not set.

    Null, empty values and the field's default are still accepted. `why` and `next_step` are
    included in the error message.
    """
    return msgspec.Meta(extra={"why": why, "next_step": next_step})


@cache
def find_marks(kind: type[msgspec.Struct]) -> Marks:
    """Return the fields of a request body type that the gateway ignores or rejects."""
    hints = get_type_hints(kind, include_extras=True)
    ignored = set()
    rejections = {}
    for field in msgspec.structs.fields(kind):
        extra: dict[str, Any] = {}
        for meta in getattr(hints[field.name], "__metadata__", ()):
            extra |= meta.extra or {}
        if "is_ignored" in extra:
            ignored.add(field.name)
        elif "why" in extra:
            default = field.default
            if field.required:
                default = None
            elif default is msgspec.NODEFAULT:
                default = field.default_factory()
            rejections[field.name] = Rejection(extra["why"], extra["next_step"], default)
    return Marks(frozenset(ignored), rejections)


def find_nested_marks(kind: type[msgspec.Struct]) -> dict[str, Mark]:
    """Return the mark of each nested field of a request body type, keyed by path.

    An example of a path is `tools[].function.name`. Fields that contain other fields or have only
    one valid value are omitted.
    """
    marks: dict[str, Mark] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for suffix, nested in _find_structs(hint):
            for path, mark in _find_leaves(nested):
                marks.setdefault(f"{name}{suffix}.{path}", mark)
    return marks


def _find_leaves(kind: type[msgspec.Struct]) -> Iterator[tuple[str, Mark]]:
    marks = find_marks(kind)
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        name = field.name
        nested = list(_find_structs(hints[name]))
        for suffix, each in nested:
            yield from ((f"{name}{suffix}.{path}", mark) for path, mark in _find_leaves(each))
        if not nested and not _has_one_value(hints[name]):
            yield name, "ignored" if name in marks.ignored else marks.rejected.get(name, "served")


def _find_structs(hint: Any, suffix: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield a path suffix and the type of each struct in a type hint.

    The path suffix is `suffix`, followed by `[]` for each list around the struct.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield suffix, hint
    elif origin is Annotated:
        yield from _find_structs(arguments[0], suffix)
    elif origin is list:
        yield from _find_structs(arguments[0], f"{suffix}[]")
    elif origin in (Union, UnionType):
        for each in arguments:
            yield from _find_structs(each, suffix)


def _has_one_value(hint: Any) -> bool:
    return get_origin(hint) is Literal and len(get_args(hint)) == 1


def check_rejected(body: msgspec.Struct) -> None:
    """Raise `ApiError` (400) if the body sets a field that is marked as rejected.

    Null, empty values and the field's default are accepted.
    """
    for name, rejection in find_marks(type(body)).rejected.items():
        value = getattr(body, name)
        if value is not None and value not in (rejection.default, "", [], {}):
            raise invalid(
                f"`{name}` is not supported, because {rejection.why}. {rejection.next_step}",
                name,
                "unsupported_parameter",
            )
