"""The documents say what the code does: links, code blocks, commands, wire messages, layers, limits, settings."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aurora_p2p import errors
from aurora_p2p.local.cli import INTERRUPTED
from aurora_p2p.local.config import load_config, render_config
from aurora_p2p.wire import limits, ticket, trust
from aurora_p2p.wire.codec import MAX_MESSAGE
from aurora_p2p.wire.control import Reason
from tests.docs.wire_blocks import BLOCK, PROTOCOL, entries, render, wire_records

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
README_WORDS = 600
PARSERS = {
    "aurora-node": "aurora_node.cli",
    "aurora-host": "aurora_p2p.host.cli",
    "aurora-bootstrap": "aurora_bootstrap.cli",
}
CONFIGS = [
    "aurora_node.config:NodeConfig",
    "aurora_p2p.host.config:HostConfig",
    "aurora_bootstrap.config:BootstrapConfig",
]


class Fence(NamedTuple):
    """A fenced block: the words after the backticks, and what is inside."""

    tag: str
    text: str


def fences(path: Path) -> list[Fence]:
    return [Fence(match[1].strip(), match[2]) for match in FENCE.finditer(path.read_text())]


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_readme_has_at_most_600_words() -> None:
    words = (ROOT / "README.md").read_text().split()
    assert len(words) <= README_WORDS, f"README.md has {len(words)} words"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_relative_link_leads_to_a_file_and_every_anchor_to_a_heading(path: Path) -> None:
    broken = []
    for target in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_python_blocks_run_and_those_that_need_a_swarm_compile_and_import_what_exists(path: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "document"}
    for fence in fences(path):
        if fence.tag == "python":
            exec(compile(fence.text, name_of(path), "exec"), namespace)  # noqa: S102 - our own documents
        elif fence.tag == "python no-run":
            compile(fence.text, name_of(path), "exec")
            assert missing_imports(fence.text) == []


def missing_imports(code: str) -> list[str]:
    """Names that `from aurora... import name` asks for and the module does not have."""
    missing = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aurora"):
            module = importlib.import_module(node.module or "")
            missing += [f"{node.module}.{name.name}" for name in node.names if not hasattr(module, name.name)]
    return missing


def test_every_fence_has_a_known_tag() -> None:
    known = {"", "sh", "sh no-run", "python", "python no-run", "wire", "mermaid", "toml", "json", "yaml", "text"}
    unknown = {(name_of(path), fence.tag) for path in DOCUMENTS for fence in fences(path) if fence.tag not in known}
    assert unknown == set()


def documented_entries() -> list[str]:
    return [
        entry
        for path in sorted(PROTOCOL.glob("*.md"))
        for block in BLOCK.findall(path.read_text())
        for entry in entries(block)
    ]


def test_the_protocol_lists_every_wire_type_once_with_its_exact_fields_and_limits() -> None:
    expected = sorted(render(kind) for kind in wire_records().values())
    assert sorted(documented_entries()) == expected, "run `python -m tests.docs.wire_blocks`"


def test_the_protocol_names_every_refusal() -> None:
    text = (PROTOCOL / "04-leases.md").read_text()
    assert [reason.value for reason in Reason if f"`{reason.value}`" not in text] == []


def test_the_limits_in_the_overview_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(MAX_\w+)` \| (\d+) \|", (PROTOCOL / "00-overview.md").read_text(), re.MULTILINE)
    code = {name: value for name, value in vars(limits).items() if name.startswith("MAX_")}
    code |= {"MAX_MESSAGE": MAX_MESSAGE, "MAX_REGIONS": trust.MAX_REGIONS, "MAX_TICKET": ticket.MAX_TICKET}
    assert {name: int(value) for name, value in rows} == code


def test_the_layers_in_the_architecture_are_those_that_import_linter_holds() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [layers] = [contract for contract in settings["tool"]["importlinter"]["contracts"] if contract["type"] == "layers"]
    section = (ROOT / "docs" / "architecture.md").read_text().partition("## Layers")[2].partition("\n## ")[0]
    assert re.findall(r"^    (\S.*)$", section, re.MULTILINE) == layers["layers"]


def test_the_layout_in_the_architecture_names_every_room() -> None:
    layout = fences(ROOT / "docs" / "architecture.md")[0].text
    rooms = [path.parent.name for path in (ROOT / "aurora_p2p").glob("*/__init__.py")]
    assert [room for room in rooms if f"  {room}/" not in layout] == []


def test_every_file_that_a_document_names_in_code_type_exists() -> None:
    missing = []
    for path in DOCUMENTS:
        for name in re.findall(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|md|toml|lock))`", prose(path)):
            if not any((root / name).exists() for root in (ROOT, ROOT / "aurora_p2p")):
                missing.append(f"{name_of(path)}: {name}")
    assert missing == []


def test_decision_records_are_numbered_without_gaps_in_the_fixed_form_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    records = sorted(folder.glob("[0-9]*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    sections = ["Status", "Context", "Decision", "Consequences", "Alternatives"]
    assert {record.name: re.findall(r"^## (\w+)", prose(record), re.MULTILINE) for record in records} == {
        record.name: sections for record in records
    }
    assert set(LINK.findall((folder / "README.md").read_text())) == {record.name for record in records}


@pytest.mark.parametrize("where", CONFIGS)
def test_every_setting_is_documented_in_the_file_that_init_writes_and_that_file_loads(
    where: str, tmp_path: Path
) -> None:
    module, _, name = where.partition(":")
    kind = getattr(importlib.import_module(module), name)
    path = tmp_path / "config.toml"
    path.write_text(render_config(kind(), "heading"))
    assert load_config(path, kind) == kind()
    for field in fields(kind):
        assert len(field.metadata["meaning"].split()) >= 3
        assert re.search(rf"^# \S.*\n{field.name} = ", path.read_text(), re.MULTILINE)


def test_every_exit_status_is_in_the_quickstart() -> None:
    rows = re.findall(r"^\| (\d+) \| \w", (ROOT / "docs" / "quickstart.md").read_text(), re.MULTILINE)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.AuroraError)]
    assert {int(row) for row in rows} == {kind.exit_status for kind in kinds if kind.exit_status != 1} | {
        0,
        INTERRUPTED,
    }


def shell_commands() -> Iterator[tuple[str, list[str]]]:
    """(document, words) of every line of every sh block, run or not; $ variables and <placeholders> as they stand."""
    for path in DOCUMENTS:
        for fence in fences(path):
            if fence.tag in ("sh", "sh no-run"):
                for line in fence.text.replace("\\\n", " ").splitlines():
                    words = shlex.split(line, comments=True)
                    if words:
                        yield name_of(path), words[: words.index("&")] if "&" in words else words


def parse(program: str, arguments: list[str]) -> argparse.Namespace:
    parser = importlib.import_module(PARSERS[program]).parser()
    assert isinstance(parser, argparse.ArgumentParser)
    return parser.parse_args(arguments)


def test_every_command_in_a_shell_block_is_one_that_its_program_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    refused = []
    for document, (program, *arguments) in shell_commands():
        if program in PARSERS and "--help" not in arguments:
            try:
                parse(program, arguments)
            except SystemExit:
                refused.append(f"{document}: {program} {' '.join(arguments)}: {capsys.readouterr().err.strip()}")
    assert refused == []


def test_every_make_target_in_a_shell_block_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {word for _, words in shell_commands() if words[0] == "make" for word in words[1:] if "=" not in word}
    assert used <= targets
    assert {"setup", "check", "test", "demo", "lock", "format"} <= targets


def test_the_shell_blocks_show_every_program() -> None:
    assert {words[0] for _, words in shell_commands()} >= set(PARSERS)


@pytest.mark.slow  # imports torch
def test_the_reference_noise_of_the_protocol_is_the_noise_of_the_engine() -> None:
    import torch

    from aurora_p2p.engine.sampling import noise_words

    [reference] = [fence.text for fence in fences(PROTOCOL / "04-leases.md") if fence.tag == "python"]
    namespace: dict[str, Any] = {}
    exec(reference, namespace)  # noqa: S102 - our own document
    seeds = [0, 1, 2**32 + 5, 2**63 - 1]
    for position in (0, 9, 70_000):
        words = noise_words(torch.tensor(seeds), position, 64)
        expected = [[namespace["noise_word"](seed, position, token) for token in range(64)] for seed in seeds]
        assert words.tolist() == expected
