"""Nothing is left out: commands, options, settings, refusals, fault points, control commands, documents."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from aurora_p2p.testing.faults import POINTS
from aurora_p2p.wire.control import Reason
from tests.docs.reference import PROGRAMS, REFERENCE, SETTINGS, commands_of, options_of, parser_of, render, settings_of
from tests.docs.wire_blocks import PROTOCOL

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_reference_is_rendered_from_the_programs() -> None:
    assert REFERENCE.read_text() == render(), "run `python -m tests.docs.reference`"


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_and_option_has_a_line_that_says_what_it_is_for(program: str) -> None:
    for name, (about, parser) in commands_of(parser_of(program)).items():
        assert len(about.split()) >= 3, name
        assert [written for written, text in options_of(parser) if len(text.split()) < 2] == []


@pytest.mark.parametrize("file", SETTINGS)
def test_every_setting_has_a_sentence(file: str) -> None:
    rows = list(settings_of(SETTINGS[file]))
    assert rows
    assert [name for name, _, text in rows if len(text.split()) < 3 or not text.endswith(".")] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_is_shown_in_a_guide(program: str) -> None:
    shown = "\n".join(
        (DOCS / f"{name}.md").read_text() for name in ("operator", "volunteer", "quickstart", "delta-files")
    )
    unshown = [name for name in commands_of(parser_of(program)) if f"{program} {name}" not in shown]
    assert unshown in ([], ["logs", "support-bundle"])  # those two of the bootstrap are the same as the others'


def test_every_setting_of_a_node_that_limits_it_is_in_the_volunteers_guide() -> None:
    text = (DOCS / "volunteer.md").read_text()
    names = [name for name, _, _ in settings_of(SETTINGS["node.toml"])]
    others = {"bootstraps", "local", "engine", "audit_every"}  # not limits: where to look, and how it works
    assert [name for name in names if name not in others and f"`{name}" not in text] == []


def test_every_refusal_is_explained_on_the_wire() -> None:
    text = (PROTOCOL / "04-leases.md").read_text()
    assert [reason.value for reason in Reason if f"`{reason.value}`" not in text] == []


def test_every_fault_point_is_in_the_reference_and_the_testing_guide_says_where_they_are() -> None:
    text = REFERENCE.read_text()
    assert POINTS
    assert [name for name in POINTS if f"| `{name}` |" not in text] == []
    assert "`POINTS`" in (DOCS / "testing.md").read_text()


CONTROLS = {
    "node": ROOT / "node/aurora_node/daemon.py",
    "host": ROOT / "aurora_p2p/host/controls.py",
}


@pytest.mark.parametrize("program", CONTROLS)
def test_every_command_of_a_control_socket_is_on_its_page(program: str) -> None:
    answered = {
        key.value
        for function in ast.walk(ast.parse(CONTROLS[program].read_text()))
        if isinstance(function, ast.FunctionDef) and function.name.strip("_") == "commands"
        for table in ast.walk(function)
        if isinstance(table, ast.Dict)
        for key in table.keys
        if isinstance(key, ast.Constant)
    }
    section = (PROTOCOL / "06-local.md").read_text().partition("## Control socket")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \|", section, re.MULTILINE)
    assert answered == {name for name, where in rows if program in where.split(", ")}
    assert answered


def test_the_index_leads_to_every_document() -> None:
    linked = set(re.findall(r"\]\(([\w/.-]+\.md)", (DOCS / "README.md").read_text()))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.glob("*.md")} - {"README.md"}
    assert pages - linked == set()
