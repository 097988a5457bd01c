"""Parse the body of a tool call one character at a time."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from trtllm_serve_cli.gateway.prompts.load_json import load_json
from trtllm_serve_cli.gateway.prompts.tools.json_scanner import InvalidCall, JsonScanner

_NAME_KEYS = ("name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_KEYS = ("type", "id")
_TYPE_NAMES: Mapping[type, frozenset[str]] = {
    type(None): frozenset({"null"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    str: frozenset({"string"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
}
# The maximum number of characters in a tag that contains a function name or an argument name.
_MAX_TAG = 512


class CallBody(Protocol):
    """A tool call that is being parsed.

    `is_started` becomes true once the text is known to be a call. From then on, `name` is set.
    `has_arguments` becomes true once the arguments are complete. `is_done` becomes true once the
    whole call, including its closing brace or tag, is complete.
    """

    name: str
    id: str | None

    @property
    def is_started(self) -> bool: ...

    @property
    def has_arguments(self) -> bool: ...

    @property
    def is_done(self) -> bool: ...

    def push(self, char: str) -> None:
        """Parse the next character. Raise `InvalidCall` if the text is not a call."""

    def take(self) -> str:
        """Return the JSON of the arguments parsed since the previous call to `take`."""


class ArgumentsBody:
    """A call whose name is already known. The text is a JSON object that contains the arguments."""

    def __init__(self, name: str, id: str | None = None) -> None:
        self.name = name
        self.id = id
        self.is_started = False
        self._scanner = JsonScanner()
        self._new: list[str] = []

    @property
    def has_arguments(self) -> bool:
        return self._scanner.is_done

    @property
    def is_done(self) -> bool:
        return self._scanner.is_done

    def push(self, char: str) -> None:
        scanner = self._scanner
        if not scanner.closers and not char.isspace() and char != "{":
            raise InvalidCall("the arguments are not a JSON object")
        text = scanner.push(char)
        if not scanner.closers and not scanner.is_done:
            return
        self._new.append(text)
        # Text that is not a call can also start with a brace. Treat the text as a call once it
        # contains a key and a colon, or is an empty object.
        if scanner.expects in ("value", "done"):
            self.is_started = True

    def take(self) -> str:
        new, self._new = self._new, []
        return "".join(new)


class ObjectBody:
    """A call as a JSON object with a name and arguments.

    The arguments are a JSON object, or a string that contains a JSON object. If `names` is not
    None, only calls to the functions in `names` are valid.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self.name = ""
        self.id: str | None = None
        self._names = names
        self._scanner = JsonScanner()
        self._key = ""
        # The part of the current top-level key or value that has been read, or None between keys
        # and values.
        self._text: list[str] | None = None
        self._arguments: ArgumentsBody | None = None

    @property
    def is_started(self) -> bool:
        return bool(self.name) and (
            self.is_done or (self._arguments is not None and self._arguments.is_started)
        )

    @property
    def has_arguments(self) -> bool:
        return self._arguments is not None and self._arguments.is_done

    @property
    def is_done(self) -> bool:
        return self._scanner.is_done

    def push(self, char: str) -> None:
        scanner = self._scanner
        is_outer = len(scanner.closers) == 1
        if self._text is None and is_outer and not char.isspace():
            self._open_token(char)
        was_literal = is_outer and bool(scanner.literal)
        text = scanner.push(char)
        if self._text is not None:
            is_after_literal = was_literal and not scanner.literal
            if self._arguments is not None and not self.has_arguments:
                self._arguments.push(char)
            elif not is_after_literal:
                self._text.append(text)
            is_open = len(scanner.closers) > 1 or scanner.is_in_string or scanner.literal
            if is_after_literal or not is_open:
                self._close_token()
        if scanner.is_done:
            self._finish()

    def take(self) -> str:
        return self._arguments.take() if self.is_started and self._arguments else ""

    def _open_token(self, char: str) -> None:
        expects = self._scanner.expects
        if expects.startswith("key") and char == '"':
            self._text = []
        elif expects == "value":
            self._text = []
            if self._key in _ARGUMENT_KEYS and char == "{":
                self._arguments = ArgumentsBody("")

    def _close_token(self) -> None:
        text, self._text = "".join(self._text or ()), None
        if self._scanner.expects == "colon":
            self._key = load_json(text)
            if self._key not in (*_NAME_KEYS, *_ARGUMENT_KEYS, *_OTHER_KEYS):
                raise InvalidCall(f"the tool call has an unknown key: {self._key!r}")
            if self._key in _ARGUMENT_KEYS and self._arguments is not None:
                raise InvalidCall("the tool call has duplicate arguments")
        elif self._key in _NAME_KEYS:
            self._read_name(load_json(text))
        elif self._key in _ARGUMENT_KEYS:
            self._arguments = self._arguments or _read_arguments(load_json(text))

    def _read_name(self, name: Any) -> None:
        if not isinstance(name, str) or not name or self.name:
            raise InvalidCall("the tool call must have exactly one non-empty name")
        if self._names is not None and name not in self._names:
            raise InvalidCall(f"{name!r} is not the name of a tool")
        self.name = name

    def _finish(self) -> None:
        if not self.name:
            raise InvalidCall("the tool call does not have a name")
        if self._arguments is None:
            self._arguments = _read_arguments({})


def _read_arguments(value: Any) -> ArgumentsBody:
    """Parse the arguments of a call.

    `value` is an object, or a string that contains a JSON object. The value null means that the
    call has no arguments. Raise `InvalidCall` for any other value.
    """
    text = value if isinstance(value, str) else json.dumps({} if value is None else value)
    arguments = ArgumentsBody("")
    for char in text.strip():
        arguments.push(char)
    if not arguments.is_done:
        raise InvalidCall("the arguments are not a JSON object")
    return arguments


class XmlBody:
    """A call in Qwen3-Coder's format, with one tag per argument.

    <function=NAME> <parameter=NAME> VALUE </parameter> </function>

    `tools` maps function names to the JSON schemas of their parameters. The schemas determine which
    values are strings and which are JSON.
    """

    _FUNCTION, _PARAMETER = "<function=", "<parameter="
    _END, _VALUE_END = "</function>", "</parameter>"

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self.name = ""
        self.id: str | None = None
        self.is_started = False
        self.is_done = False
        self.has_arguments = False
        self._tools = tools
        self._text = ""
        self._key: str | None = None
        self._value: list[str] = []
        self._num_arguments = 0
        self._new = ""

    def push(self, char: str) -> None:
        if self._key is not None:
            self._value.append(char)
            length = len(self._VALUE_END)
            if char == ">" and "".join(self._value[-length:]) == self._VALUE_END:
                self._add_argument("".join(self._value[:-length]))
            return
        if not self._text and char.isspace():
            return
        self._text += char
        tags = (self._PARAMETER, self._END) if self.name else (self._FUNCTION,)
        is_tag = any(each.startswith(self._text) or self._text.startswith(each) for each in tags)
        if not is_tag or len(self._text) > _MAX_TAG:
            raise InvalidCall(f"{self._text!r} is not a valid tag in a tool call")
        if char == ">":
            self._close_tag(self._text[:-1])

    def take(self) -> str:
        new, self._new = self._new, ""
        return new

    def _close_tag(self, tag: str) -> None:
        self._text = ""
        name = tag.partition("=")[2].strip()
        if tag == self._END[:-1]:
            self.is_done = self.has_arguments = True
            self._new += "}"
        elif not name:
            raise InvalidCall("a tag in the tool call does not have a name")
        elif self.name:
            self._key = name
        else:
            self.name, self.is_started = name, True
            self._new += "{"

    def _add_argument(self, text: str) -> None:
        separator = ", " if self._num_arguments else ""
        value = text.removeprefix("\n").removesuffix("\n")
        parameters = self._tools.get(self.name, {}).get("properties", {})
        schema = parameters.get(self._key, {}) if isinstance(parameters, dict) else {}
        self._new += f"{separator}{json.dumps(self._key)}: {_to_json(value, schema)}"
        self._num_arguments += 1
        self._key, self._value = None, []


def _to_json(text: str, schema: Any) -> str:
    """Return the text of an argument as JSON.

    The text becomes a JSON string unless the schema allows other types and the text is valid JSON.
    If the schema allows strings, the JSON must also have a type that the schema allows. The
    literals `true`, `false` and `null` may contain uppercase letters, and `None` becomes null.
    """
    types = _find_types(schema) if isinstance(schema, Mapping) else {"string"}
    if types != {"string"}:
        lowered = text.strip().lower()
        literals = {"true": "true", "false": "false", "null": "null", "none": "null"}
        try:
            value = load_json(literals.get(lowered, text))
            if types is None or "string" not in types or types & _TYPE_NAMES[type(value)]:
                return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _find_types(schema: Any) -> set[str] | None:
    """Return the JSON types that a schema allows, or None if they are unknown.

    A schema without a type, a reference or alternatives describes a string.
    """
    if not isinstance(schema, Mapping) or {"$ref", "allOf"} & schema.keys():
        return None
    alternatives = schema.get("anyOf", schema.get("oneOf"))
    if "type" in schema or alternatives is None:
        named = schema.get("type", "string")
        names = named if isinstance(named, list) else [named]
        return {each for each in names if isinstance(each, str)}
    types: set[str] = set()
    for each in alternatives if isinstance(alternatives, list) else [None]:
        if (found := _find_types(each)) is None:
            return None
        types |= found
    return types
