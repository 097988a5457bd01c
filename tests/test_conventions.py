"""Rules for the tests themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
# Public names of the standard library that start with an underscore.
PUBLIC = {"_asdict", "_fields", "_make", "_replace", "_exit"}
# Stand-ins have the names of the packages that they replace.
STAND_INS = TESTS / "fakes" / "stand_in"
OTHER_TESTS = re.compile(r"^\s*(?:from|import) (tests\.(?:\w+\.)*test_\w+)", re.MULTILINE)


def find_private_access(code: str) -> Iterator[str]:
    """Yield uses of a private name of another object or module, and of `sys.settrace`."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr="settrace"):
                yield ast.unparse(node)
            case ast.Attribute(attr=name) if is_private(name):
                yield ast.unparse(node)
            case ast.ImportFrom(names=names) if any(is_private(each.name) for each in names):
                yield ast.unparse(node)
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr") | ast.Name(id="getattr" | "setattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ) if is_private(name):
                yield ast.unparse(node)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def test_number_of_examples_depends_on_the_option(is_full: bool) -> None:
    assert settings().max_examples == (1000 if is_full else 40)


def test_no_test_sets_a_fixed_number_of_examples() -> None:
    found = [
        str(module.relative_to(TESTS))
        for module in sorted(TESTS.rglob("test_*.py"))
        if re.search(r"max_examples=\d+[,)]", module.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "engine._core.close()",
        "house._worker",
        "from package.module import _parse",
        'monkeypatch.setattr(module, "_LIMIT_S", 2.0)',
        'getattr(engine, "_core")',
        "sys.settrace(trace)",
    ],
)
def test_private_access_is_found(code: str) -> None:
    assert list(find_private_access(code))


@pytest.mark.parametrize("code", ["self._core", "point._replace(x=1)", "module.__file__"])
def test_other_access_is_allowed(code: str) -> None:
    assert not list(find_private_access(code))


def test_no_test_reads_private_names() -> None:
    found = {
        f"{module.relative_to(TESTS)}: {each}"
        for module in sorted(TESTS.rglob("*.py"))
        if not module.is_relative_to(STAND_INS)
        for each in find_private_access(module.read_text("utf-8"))
    }
    assert found == set()


def test_no_test_module_imports_another() -> None:
    assert OTHER_TESTS.findall("  from tests.cli.test_main import x") == ["tests.cli.test_main"]
    found = {
        f"{module.relative_to(TESTS)}: {imported}"
        for module in sorted(TESTS.rglob("*.py"))
        for imported in OTHER_TESTS.findall(module.read_text("utf-8"))
    }
    assert found == set()
