"""Every property of docs/properties.md names a test, and each of these exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "properties.md").read_text()
ROWS = re.findall(r"^\| (?!property|---)(.+?) \| `(tests/[\w/]+\.py)::(\w+)` \|$", TEXT, re.MULTILINE)


def names_in(path: Path) -> set[str]:
    """Test functions, test classes, and what a test class is bound to."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def test_every_row_of_the_table_names_one_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| property")]
    assert len(rows) == len(ROWS) > 0


@pytest.mark.parametrize(("path", "name"), [(path, name) for _, path, name in ROWS])
def test_a_property_is_shown_by_a_test_that_exists(path: str, name: str) -> None:
    assert name in names_in(ROOT / path)
