"""Read and change values in a `config.pbtxt` without changing any other byte.

`_Reader` parses the text, because protobuf's parser discards the positions of values. `_Reader`
also accepts the templates in triton-inference-server/tensorrtllm_backend, which protobuf rejects if
a `${name}` variable is unquoted.

A `place` is the path to a field, for example `max_batch_size`, `instance_group.count`,
`input.input_ids.data_type`, `parameters.KEY` or `ensemble_scheduling.step.MODEL.model_name`. In
`input`, `output`, `parameters` and `step`, the path names one element. In any other list, the path
selects all elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trtllm_serve_cli.rendering import quote_pbtxt

# Maps list fields to the field that identifies an element of the list.
_SELECTED_BY = {"input": "name", "output": "name", "parameters": "key", "step": "model_name"}
_TOKEN = re.compile(
    r"""(?P<skip>[\s]+|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<sign>[{}<>\[\]:,;])
      | (?P<word>\$\{[^}\n]*\}|-?\s*[^\s{}<>\[\]:,;\#"']+)""",
    re.VERBOSE,
)
_CLOSED_BY = {"{": "}", "<": ">", "[": "]"}
_TEMPLATE = re.compile(r"\$\{([^}\n]*)\}")


# A parsed field path, as (field name, element name) pairs. The element name selects an element of a
# list field. It is None if the field is not a list, or if all elements are selected.
_Steps = tuple[tuple[str, str | None], ...]


class PbtxtError(ValueError):
    """Raised if a text is not a valid `config.pbtxt`. `line` is 1-based."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(f"line {line}: {what}")
        self.what = what
        self.line = line


@dataclass(frozen=True, slots=True)
class Unfilled:
    """A `${name}` variable that has not been replaced with a value.

    Triton cannot read a file with unquoted variables. `line` is 1-based.
    """

    name: str
    line: int
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class _Value:
    """A scalar between the offsets `start` and `end`.

    Adjacent quoted strings count as one scalar.
    """

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _List:
    start: int
    end: int
    items: tuple[_Value | _Message, ...]


@dataclass(frozen=True, slots=True)
class _Message:
    """A message. The offsets `start` and `end` delimit its text, without the braces."""

    start: int
    end: int
    fields: tuple[tuple[str, _Value | _List | _Message], ...]


def parse_config(text: str) -> Any:
    """Parse `text` with protobuf, as Triton does. Return the `ModelConfig` message.

    Raise `PbtxtError` if protobuf rejects the text.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        what = re.sub(r"^[0-9]+:[0-9]+ ?: *", "", str(error))
        raise PbtxtError(what, error.GetLine() or 1) from error


def find_values(text: str, place: str) -> list[str]:
    """Return the values of the field `place` in text order, or [] if it has no value.

    A list with several elements is one value, for example "1, 2". Raise `PbtxtError` if the text
    cannot be parsed.
    """
    return list(_find_values(text, place))


def line_of(text: str, place: str) -> int | None:
    """Return the 1-based line of the first value of the field `place`, or None if it is missing."""
    found = _find(text, _read(text), _steps(place))
    return _line(text, found[0].start) if found else None


def change(text: str, place: str, value: str) -> str:
    """Return `text` with the field `place` set to `value`. If the field is missing, add it.

    Pass `value` without quotes. Quotes are added if the field is a string. If the field is a list
    of numbers, `value` replaces the complete list. Raise `PbtxtError` if the text cannot be parsed.
    Raise `KeyError` if Triton's model configuration has no such field, or if `place` names a tensor
    or step that is missing in the text.
    """
    steps = _steps(place)
    literal = write_value(place, value)
    root = _read(text)
    found = _find(text, root, steps)
    if not found:
        return _add(text, root, steps, literal)
    for each in sorted(found, key=lambda each: each.start, reverse=True):
        text = text[: each.start] + literal + text[each.end :]
    return text


def list_unfilled(text: str) -> list[Unfilled]:
    """Return the `${name}` variables in the text. Variables in comments are ignored."""
    return list(_list_unfilled(text))


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return `text` with the variables in `values` filled in. Comments are unchanged."""
    pieces, last = [], 0
    for kind, start, end in _tokens(text):
        if kind not in ("string", "word"):
            continue
        for found in _TEMPLATE.finditer(text, start, end):
            if found[1] in values:
                value = values[found[1]]
                literal = quote_pbtxt(value)[1:-1] if kind == "string" else value
                pieces += [text[last : found.start()], literal]
                last = found.end()
    return "".join(pieces) + text[last:]


def write_value(place: str, value: str) -> str:
    """Return `value` as a literal for the field `place`. String literals are quoted.

    Raise `KeyError` if Triton's model configuration has no such field.
    """
    from google.protobuf import descriptor
    from tritonclient.grpc import model_config_pb2

    *above, (last, _) = _steps(place)
    message = model_config_pb2.ModelConfig.DESCRIPTOR
    for name, _ in above:
        message = message.fields_by_name[name].message_type
    field = message.fields_by_name[last]
    return quote_pbtxt(value) if field.type == descriptor.FieldDescriptor.TYPE_STRING else value


def is_unfilled(value: str) -> bool:
    """Return whether the value is a `${name}` variable of a template."""
    return _TEMPLATE.fullmatch(value) is not None


def _steps(place: str) -> _Steps:
    steps: list[tuple[str, str | None]] = []
    rest = place
    while rest:
        name, _, rest = rest.partition(".")
        if name == "parameters":
            return (*steps, (name, rest), ("value", None), ("string_value", None))
        if name in _SELECTED_BY:
            # Split at the last dot, because element names can contain dots, but field names cannot.
            element, _, rest = rest.rpartition(".")
            steps.append((name, element))
        else:
            steps.append((name, None))
    return tuple(steps)


# `tllm set` and `tllm validate` read the same fields of the same texts for each parameter.
@lru_cache(maxsize=4096)
def _find_values(text: str, place: str) -> tuple[str, ...]:
    found = _find(text, _read(text), _steps(place))
    return tuple(_plain(text, each) for each in found)


@lru_cache(maxsize=64)
def _list_unfilled(text: str) -> tuple[Unfilled, ...]:
    return tuple(
        Unfilled(found[1], _line(text, found.start()), kind == "string")
        for kind, start, end in _tokens(text)
        if kind in ("string", "word")
        for found in _TEMPLATE.finditer(text, start, end)
    )


def _find(text: str, message: _Message, steps: _Steps) -> list[_Value]:
    """Return the scalars at the parsed field path `steps`.

    A list with several elements is returned as one scalar, from the first to the last element, so
    that `change` replaces the complete list.
    """
    (name, element), *rest = steps
    found: list[_Value] = []
    for each in _elements(text, message, name, element, keep_lists=not rest):
        if isinstance(each, _Message) and rest:
            found += _find(text, each, tuple(rest))
        elif isinstance(each, _Value) and not rest:
            found.append(each)
    return found


def _elements(
    text: str, message: _Message, name: str, element: str | None, *, keep_lists: bool = False
) -> Iterator[_Value | _Message]:
    for field, value in message.fields:
        if field != name:
            continue
        for each in _items(value, keep_lists=keep_lists):
            if element is None or (
                isinstance(each, _Message)
                and any(
                    _plain(text, key) == element
                    for key in _find(text, each, ((_SELECTED_BY[name], None),))
                )
            ):
                yield each


def _items(value: _Value | _List | _Message, *, keep_lists: bool) -> tuple[_Value | _Message, ...]:
    if not isinstance(value, _List):
        return (value,)
    if keep_lists and len(value.items) > 1:
        return (_Value(value.items[0].start, value.items[-1].end),)
    return value.items


def _add(text: str, root: _Message, steps: _Steps, literal: str) -> str:
    """Return `text` with the missing field at `steps` added.

    Missing messages on the path to the field are also added.
    """
    parents, depth = [root], 0
    for name, element in steps[:-1]:
        inner = [each for each in _elements(text, parents[0], name, element)
                 if isinstance(each, _Message)]  # fmt: skip
        if not inner:
            break
        parents, depth = inner, depth + 1
    snippet = f"{steps[-1][0]}: {literal}"
    for name, element in reversed(steps[depth:-1]):
        if element is None:
            snippet = f"{name} {{ {snippet} }}"
        elif name == "parameters":
            snippet = f"parameters {{ key: {quote_pbtxt(element)} {snippet} }}"
        else:
            raise KeyError(f"{name} {element}")
    return _insert(text, parents[-1].end, snippet, is_top=depth == 0)


def _insert(text: str, position: int, snippet: str, *, is_top: bool) -> str:
    line_start = text.rfind("\n", 0, position) + 1
    indent = text[line_start:position]
    if is_top:
        return text + ("" if text.endswith("\n") or not text else "\n") + snippet + "\n"
    if not indent.strip() and line_start:
        return f"{text[:line_start]}{indent}  {snippet}\n{text[line_start:]}"
    return f"{text[:position]} {snippet} {text[position:]}"


def _plain(text: str, value: _Value) -> str:
    """Return a scalar's value, without quotes and with escape sequences decoded."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    literal = text[value.start : value.end]
    if literal[:1] not in ("'", '"'):
        return literal
    if "\\" not in literal and literal.count(literal[0]) == 2:
        return literal[1:-1]
    try:
        parsed = text_format.Parse(f"name: {literal}", model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise PbtxtError(f"{literal} is not a valid string", _line(text, value.start)) from error
    return str(parsed.name)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _tokens(text: str) -> Iterator[tuple[str, int, int]]:
    position = 0
    for found in _TOKEN.finditer(text):
        if found.start() != position:
            break
        position = found.end()
        if found.lastgroup is not None and found.lastgroup != "skip":
            yield found.lastgroup, *found.span()
    if position != len(text):
        raise PbtxtError(f"unterminated string: {text[position:position + 20]!r}",
                         _line(text, position))  # fmt: skip


@lru_cache(maxsize=64)
def _read(text: str) -> _Message:
    return _Reader(text).read_all()


class _Reader:
    """A recursive descent parser for protobuf text format that keeps value positions."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = 0

    def read_all(self) -> _Message:
        fields = self._read_fields(None)
        return _Message(0, len(self._text), fields)

    def _peek(self) -> str:
        """Return the next token if it is punctuation, "end" at the end of the text, else ""."""
        if self._next == len(self._tokens):
            return "end"
        kind, start, end = self._tokens[self._next]
        return self._text[start:end] if kind == "sign" else ""

    def _fail(self, expected: str) -> PbtxtError:
        if self._next == len(self._tokens):
            return PbtxtError(
                f"unexpected end of file, expected {expected}", _line(self._text, len(self._text))
            )
        _, start, end = self._tokens[self._next]
        return PbtxtError(
            f"unexpected {self._text[start:end]!r}, expected {expected}", _line(self._text, start)
        )

    def _read_fields(
        self, closed_by: str | None
    ) -> tuple[tuple[str, _Value | _List | _Message], ...]:
        fields: list[tuple[str, _Value | _List | _Message]] = []
        while (sign := self._peek()) != (closed_by or "end"):
            if sign or self._tokens[self._next][0] != "word":
                raise self._fail("a field")
            _, start, end = self._tokens[self._next]
            self._next += 1
            if self._peek() == ":":
                self._next += 1
            fields.append((self._text[start:end], self._read_value()))
            if self._peek() in (",", ";"):
                self._next += 1
        return tuple(fields)

    def _read_value(self) -> _Value | _List | _Message:
        return self._read_list() if self._peek() == "[" else self._read_item()

    def _read_item(self) -> _Value | _Message:
        sign = self._peek()
        if sign in ("{", "<"):
            start = self._tokens[self._next][2]
            self._next += 1
            fields = self._read_fields(_CLOSED_BY[sign])
            message = _Message(start, self._tokens[self._next][1], fields)
            self._next += 1
            return message
        if sign:
            raise self._fail("a value")
        kind, start, end = self._tokens[self._next]
        self._next += 1
        while kind == "string" and self._peek() == "" and self._tokens[self._next][0] == "string":
            end = self._tokens[self._next][2]
            self._next += 1
        return _Value(start, end)

    def _read_list(self) -> _List:
        start = self._tokens[self._next][2]
        self._next += 1
        items: list[_Value | _Message] = []
        while self._peek() != "]":
            items.append(self._read_item())
            if self._peek() == ",":
                self._next += 1
            elif self._peek() != "]":
                raise self._fail("',' or ']'")
        end = self._tokens[self._next][1]
        self._next += 1
        return _List(start, end, tuple(items))
