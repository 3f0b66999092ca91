"""Tests that the code stays easy to find and read: few modules in a folder, short modules and functions."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
FOLDERS = ("bench", "docs", "jobs", "lakelog", "pipeline", "schemas", "scripts", "storage_engine", "tests")
MODULES = sorted(path.relative_to(HOME) for folder in FOLDERS for path in (HOME / folder).rglob("*.py"))
OURS = [path for path in MODULES if path.parts[0] not in ("bench", "docs", "scripts", "tests")]
MOST_MODULES = 15
MOST_LINES = 450
MOST_LINES_OF_A_FUNCTION = 60


def text_of(module: Path) -> str:
    return (HOME / module).read_text(encoding="utf-8")


def test_no_folder_has_more_modules_than_one_can_look_through() -> None:
    counts = Counter(str(path.parent) for path in MODULES)
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_no_module_is_longer_than_one_can_keep_in_mind() -> None:
    assert {str(path): lines for path in OURS if (lines := text_of(path).count("\n")) > MOST_LINES} == {}


@pytest.mark.parametrize("module", OURS, ids=str)
def test_no_function_is_longer_than_a_page(module: Path) -> None:
    """Kernels are compiled whole."""
    if "kernels" in str(module):
        return
    functions = [node for node in ast.walk(ast.parse(text_of(module))) if isinstance(node, ast.FunctionDef)]
    lengths = {each.name: (each.end_lineno or 0) - each.lineno + 1 for each in functions}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES_OF_A_FUNCTION} == {}


def test_every_package_says_what_it_is() -> None:
    packages = [path for path in OURS if path.name == "__init__.py"]
    assert [str(path) for path in packages if not ast.get_docstring(ast.parse(text_of(path)))] == []
