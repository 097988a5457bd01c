"""Explain msgspec's errors in terms of the client's JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import msgspec
from msgspec import inspect

from trtllm_serve_cli.gateway.errors import ApiError, invalid

_MISSING = re.compile("Object missing required field `(.*)`")
_NOT_ACCEPTED = re.compile("Invalid (?:enum )?value (.*)", re.S)
_WRONG_TYPE = re.compile("Expected `(.*)`, got `(.*)`")
_OUT_OF_RANGE = re.compile(r"Expected `\w+` (of length )?(>=|<=|>|<) (.*)")
_WRONG_PATTERN = re.compile(r"Expected `str` matching regex '(.*)'", re.S)
# A field name, or the index or key of an element.
_STEP = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")
_TYPES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "greater than", "<": "less than"}


def explain_invalid_json(data: bytes, error: Exception) -> ApiError:
    """Return the error (400) for a request body that is not valid JSON."""
    if not data.strip():
        return invalid("The request body is empty. Send a JSON object.")
    why = str(error).removeprefix("JSON is malformed: ")
    if why == "Input data was truncated":
        why = "it is incomplete"
    return invalid(f"The request body is not valid JSON: {why}.")


def explain_invalid_field(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> ApiError:
    """Return the error (400) for a field that does not match `kind`.

    The message names the field by its path, for example `messages[0].role`.
    """
    message, _, path = str(error).partition(" - at `$")
    path = path.removesuffix("`")
    if missing := _MISSING.fullmatch(message):
        param = f"{path}.{missing[1]}".lstrip(".")
        return invalid(f"`{param}` is required.", param)
    param = path.lstrip(".")
    name = f"`{param}`" if param else "The request body"
    # msgspec does not name the key of a value in an object, so name the object.
    return invalid(f"{name} {_explain(message, kind, path)}.", param.partition("[...]")[0] or None)


def _explain(message: str, kind: type[msgspec.Struct], path: str) -> str:
    if (found := _NOT_ACCEPTED.fullmatch(message)) and (values := _list_accepted(kind, path)):
        return f"must be {_join(list(map(repr, values)))}, but is {found[1]}"
    if found := _WRONG_TYPE.fullmatch(message):
        expected = found[1].removesuffix(" | null").split(" | ")
        accepted = _join([_TYPES.get(each, each) for each in expected])
        return f"must be {accepted}, but is {_TYPES.get(found[2], found[2])}"
    if found := _OUT_OF_RANGE.fullmatch(message):
        verb = "have a length of" if found[1] else "be"
        return f"must {verb} {_BOUNDS[found[2]]} {found[3].removesuffix('.0')}"
    if found := _WRONG_PATTERN.fullmatch(message):
        return f"must match the regular expression {found[1]}"
    return f"is invalid: {message}"


def _join(alternatives: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(alternatives[:-1]), *alternatives[-1:])))


def _list_accepted(kind: type[msgspec.Struct], path: str) -> list[object]:
    """Return the literal values that the field at `path` accepts, or [] if it has none."""
    types = [_describe(kind)]
    for step in _STEP.finditer(path):
        types = [inner for each in types for inner in _enter(each, step[1])]
    return [
        value
        for each in types
        for flat in _flatten(each)
        if isinstance(flat, inspect.LiteralType)
        for value in flat.values
    ]


_describe = cache(inspect.type_info)


def _flatten(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the alternatives of a type."""
    if isinstance(kind, inspect.Metadata):
        yield from _flatten(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _flatten(each)
    else:
        yield kind


def _enter(kind: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """Yield the types of a field, or of the elements if `field` is None."""
    for each in _flatten(kind):
        if isinstance(each, inspect.StructType):
            yield from (inner.type for inner in each.fields if inner.encode_name == field)
            if each.tag is not None and each.tag_field == field:
                yield inspect.LiteralType((each.tag,))
        elif isinstance(each, inspect.ListType):
            yield each.item_type
        elif isinstance(each, inspect.DictType):
            yield each.value_type
