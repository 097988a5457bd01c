"""The errors and their texts."""

from __future__ import annotations

import errno
import inspect
import json
import re

import pytest

from trtllm_serve_cli import errors
from trtllm_serve_cli.errors import BadInput, TllmError, explain_invalid_file

FAMILY = [each for _, each in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TllmError("It broke."), "It broke."),
        (TllmError("It broke.", why="rust"), "It broke.\nWhy: rust"),
        (BadInput("No.", why="w", next_step="use x"), "No.\nWhy: w\nNext: use x"),
    ],
)
def test_error_text_has_what_why_and_next(error: TllmError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "a.json is missing"),
        (OSError(errno.EIO, "Input/output error"), "a.json cannot be read: Input/output error"),
        (KeyError("kind"), "a.json does not contain 'kind'"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "a.json is not UTF-8 text"),
        (json.JSONDecodeError("Expecting value", "", 0), "a.json is not valid JSON: Expecting "),
        (ValueError("rank 0 is missing"), "a.json is not valid: rank 0 is missing"),
        (TypeError("not iterable"), "a.json does not have the structure that tllm writes"),
    ],
)
def test_invalid_file_is_explained(error: Exception, text: str) -> None:
    assert explain_invalid_file("a.json", error).startswith(text)


def test_every_error_is_a_tllm_error() -> None:
    assert all(issubclass(each, TllmError) for each in FAMILY)


def test_docstring_shows_the_class_tree() -> None:
    drawn = re.findall(r"^    ([│├└─ ]*)(\w+)", errors.__doc__ or "", re.MULTILINE)
    depths = {name: len(branch) // 4 for branch, name in drawn}
    assert depths == {each.__name__: len(each.__mro__) - 4 for each in FAMILY}
