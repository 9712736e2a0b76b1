"""The threat model names its proofs: each is a test that exists, and each defended property has one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "threat-model.md").read_text()
DEFENDED = TEXT.partition("## Defended")[2].partition("## Not defended")[0]
OPEN = TEXT.partition("## Not defended")[2].partition("\n## ")[0]
PROOF = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NOT_BUILT = ["relay", "STUN", "Landlock", "namespace", "re-scoring", "reputation", "probation", "gateways", "Sybils"]


def rows(section: str) -> list[list[str]]:
    """The cells of every table row, without heads."""
    lines = [
        line
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith(("| property", "| threat"))
    ]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def names_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("row", rows(DEFENDED), ids=lambda row: row[0][:60])
def test_every_defended_property_has_a_mechanism_and_proofs_that_exist(row: list[str]) -> None:
    assert len(row) == 3
    assert row[1]
    proofs = PROOF.findall(row[2])
    assert proofs
    missing = [f"{path}::{name}" for path, name in proofs if name not in names_in(ROOT / path)]
    assert missing == []


def test_everything_in_code_type_in_a_proof_cell_is_a_proof() -> None:
    assert [row[0] for row in rows(DEFENDED) if len(PROOF.findall(row[2])) != row[2].count("`") // 2] == []


def test_what_is_not_built_is_said_to_be_open() -> None:
    assert [word for word in NOT_BUILT if word not in OPEN] == []
    assert all(len(row) == 2 and len(row[1].split()) >= 5 for row in rows(OPEN))


def test_every_actor_and_asset_is_in_a_table() -> None:
    actors = TEXT.partition("## Actors")[2].partition("\n## ")[0]
    for actor in ("network", "stranger", "bootstrap", "peer", "node", "host", "trainer", "local user"):
        assert re.search(rf"^\| {actor}\b", actors, re.MULTILINE), actor
