"""Rules for the structure of the package that import-linter cannot check."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.api import read_configuration

from trtllm_serve_cli.engine_kinds.registry import kind_names

CHECKOUT = Path(__file__).parents[1]
PACKAGE = CHECKOUT / "trtllm_serve_cli"
MODULES = sorted(PACKAGE.rglob("*.py"))
# Only these may compare the names of engine kinds: the modules of the kinds and their registries.
OF_ENGINE_KINDS = (PACKAGE / "engine_kinds", PACKAGE / "runtime" / "engines")
MOST_MODULES = 15


def find_comparisons(code: str, words: set[str]) -> Iterator[str]:
    """Yield the comparisons and the `case` patterns in which one of the words occurs."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare | ast.MatchValue):
            constants = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            if constants & words:
                yield ast.unparse(node)


@pytest.mark.parametrize(
    "code",
    [
        'x = kind == "sim"',
        'x = engine.kind in ("sim", "openvino")',
        'if "sim" != kind: pass',
        'match kind:\n    case "sim": pass',
        'match kind:\n    case "vllm" | "sim": pass',
    ],
)
def test_comparisons_are_found(code: str) -> None:
    assert list(find_comparisons(code, {"sim"}))
    assert not list(find_comparisons(code, {"tensorrt"}))


def test_no_comparison_of_an_engine_kinds_name() -> None:
    names = set(kind_names())
    assert "tensorrt" in names
    found = {
        f"{module.relative_to(CHECKOUT)}: {each}"
        for module in MODULES
        if not any(module.is_relative_to(folder) for folder in OF_ENGINE_KINDS)
        for each in find_comparisons(module.read_text("utf-8"), names)
    }
    assert found == set()


def test_no_folder_has_many_modules() -> None:
    folders = {module.parent for module in MODULES}
    sizes = {
        str(folder.relative_to(CHECKOUT)): len(set(folder.glob("*.py")) - {folder / "__init__.py"})
        for folder in folders
    }
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_every_module_has_a_docstring() -> None:
    """Check what docs/reference/modules.md is generated from."""
    undocumented = [module for module in MODULES if not module.read_text("utf-8").startswith('"""')]
    assert undocumented == []


def test_map_of_modules_names_every_module() -> None:
    page = (CHECKOUT / "docs" / "reference" / "modules.md").read_text("utf-8")
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    listed = {
        f"{folder}/{line.split('`')[1]}"
        for folder, text in sections.items()
        for line in text.splitlines()
        if line.startswith("- ")
    }
    existing = {str(each.relative_to(CHECKOUT)) for each in MODULES if each.name != "__init__.py"}
    assert listed == existing


def test_import_contract_of_runtime_lists_every_package() -> None:
    """Check the list for import-linter, to which every new package must be added."""
    contracts = read_configuration(str(CHECKOUT / "pyproject.toml"))["contracts_options"]
    (contract,) = (each for each in contracts if each["type"] == "forbidden")
    forbidden = {each.removeprefix("trtllm_serve_cli.") for each in contract["forbidden_modules"]}
    existing = {
        each.stem
        for each in PACKAGE.iterdir()
        if each.suffix == ".py" or (each / "__init__.py").exists()
    }
    assert forbidden == existing - {"__init__", "runtime"}
