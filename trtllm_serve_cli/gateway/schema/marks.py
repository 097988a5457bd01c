"""Mark request fields that have no effect or are rejected.

The marks are type annotations. If a request sets a field that is marked as rejected, the gateway
rejects the request. `docs/reference/openai-parameters.md` is generated from the marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

import msgspec

from trtllm_serve_cli.gateway.errors import invalid

# Annotation for a field that has no effect on the response.
IGNORED = msgspec.Meta(extra={"is_ignored": True})


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why the gateway rejects a field, and what the client should do instead."""

    why: str
    next_step: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class Marks:
    """The marked fields of a request body. The gateway supports all other fields."""

    ignored: frozenset[str]
    rejected: Mapping[str, Rejection]


def rejected(why: str, next_step: str = "Omit it.") -> msgspec.Meta:
    """Return an annotation for a field that requests must not set.

    Null, empty values and the field's default are still accepted. `why` and `next_step` are
    included in the error message.
    """
    return msgspec.Meta(extra={"why": why, "next_step": next_step})


@cache
def find_marks(kind: type[msgspec.Struct]) -> Marks:
    """Return the marked fields of a body."""
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
            if default is msgspec.NODEFAULT:
                default = field.default_factory()
            rejections[field.name] = Rejection(extra["why"], extra["next_step"], default)
    return Marks(frozenset(ignored), rejections)


def check_rejected(body: msgspec.Struct) -> None:
    """Raise `ApiError` (400) if the request sets a field that the gateway does not support."""
    for name, rejection in find_marks(type(body)).rejected.items():
        value = getattr(body, name)
        if value is not None and value not in (rejection.default, "", [], {}):
            raise invalid(
                f"{name} is not supported, because {rejection.why}. {rejection.next_step}",
                name,
                "unsupported_parameter",
            )
