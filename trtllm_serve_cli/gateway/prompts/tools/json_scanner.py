"""Validate JSON one character at a time."""

from __future__ import annotations

import re

_SPACE = " \t\r\n"
_LITERAL_START = "-0123456789tfn"
_LITERAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null")
_CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


class InvalidCall(ValueError):
    """Raised if text is not a tool call in the expected format."""


class JsonScanner:
    """A validator for one JSON value."""

    def __init__(self) -> None:
        # The closing brackets of the open objects and arrays, outermost first.
        self.closers: list[str] = []
        # The expected next token: `value`, `value_or_end`, `key`, `key_or_end`, `colon`, `comma`
        # (or a closing bracket), or `done`. Not updated inside strings and literals.
        self.expects = "value"
        self.is_in_string = False
        self.literal = ""
        self._escape = ""

    @property
    def is_done(self) -> bool:
        return self.expects == "done"

    def push(self, char: str) -> str:
        """Check the next character and return the text to append to the valid JSON.

        Models often write line breaks and backslashes in strings without escaping them. The
        returned text contains the missing escapes. An escape sequence is returned only when it is
        complete. Raise `InvalidCall` if the value is not valid.
        """
        if self.is_in_string:
            return self._push_in_string(char)
        if self.literal:
            if char.isalnum() or char in "+-.":
                self.literal += char
                return char
            if not _LITERAL.fullmatch(self.literal):
                raise InvalidCall(f"{self.literal!r} is not a valid JSON value")
            self.literal = ""
            self._end_value()
        if char not in _SPACE:
            self._push_token(char)
        return char

    def _push_token(self, char: str) -> None:
        expects_value = self.expects.startswith("value")
        if char == '"' and (expects_value or self.expects.startswith("key")):
            self.is_in_string = True
        elif expects_value and char in "{[":
            self.closers.append("}" if char == "{" else "]")
            self.expects = "key_or_end" if char == "{" else "value_or_end"
        elif expects_value and char in _LITERAL_START:
            self.literal = char
        elif self.closers and char == self.closers[-1] and self._can_end():
            self.closers.pop()
            self._end_value()
        elif char == "," and self.expects == "comma":
            self.expects = "key" if self.closers[-1] == "}" else "value"
        elif char == ":" and self.expects == "colon":
            self.expects = "value"
        else:
            raise InvalidCall(f"unexpected character {char!r} in JSON")

    def _can_end(self) -> bool:
        return self.expects in ("comma", "key_or_end", "value_or_end")

    def _end_value(self) -> None:
        self.expects = "comma" if self.closers else "done"

    def _push_in_string(self, char: str) -> str:
        if self._escape:
            return self._push_in_escape(char)
        if char == "\\":
            self._escape = char
            return ""
        if char == '"':
            self.is_in_string = False
            if self.expects.startswith("key"):
                self.expects = "colon"
            else:
                self._end_value()
        if char < " ":
            return _CONTROL.get(char, f"\\u{ord(char):04x}")
        return char

    def _push_in_escape(self, char: str) -> str:
        self._escape += char
        escape = self._escape
        if len(escape) == 2 and char in '"\\/bfnrt':
            self._escape = ""
            return escape
        if escape[1] == "u":
            if len(escape) > 2 and char not in "0123456789abcdefABCDEF":
                raise InvalidCall(f"{escape!r} is not a valid JSON escape sequence")
            if len(escape) < 6:
                return ""
            self._escape = ""
            return escape
        # The backslash does not start a valid JSON escape sequence. Remove the backslash before an
        # apostrophe. Escape any other backslash, because it may be part of a regular expression.
        self._escape = ""
        return "'" if char == "'" else "\\\\" + _CONTROL.get(char, char)
