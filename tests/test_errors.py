"""The errors and their texts."""

from __future__ import annotations

import inspect
import re

import pytest

from trtllm_serve_cli import errors
from trtllm_serve_cli.errors import BadInput, TllmError

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


def test_every_error_is_a_tllm_error() -> None:
    assert all(issubclass(each, TllmError) for each in FAMILY)


def test_docstring_shows_the_class_tree() -> None:
    drawn = re.findall(r"^    ([│├└─ ]*)(\w+)", errors.__doc__ or "", re.MULTILINE)
    depths = {name: len(branch) // 4 for branch, name in drawn}
    assert depths == {each.__name__: len(each.__mro__) - 4 for each in FAMILY}
