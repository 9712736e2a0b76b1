"""The glossary has every term: types of the library, messages between machines, words the protocol introduces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aurora_p2p import types
from tests.docs.wire_blocks import PROTOCOL, wire_records

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
ENTRY = re.compile(
    r"^- \*\*(?P<term>[^*]+)\*\*(?: \(also (?P<also>[^)]+)\))?: (?P<text>(?:.+\n(?:  .+\n)*))", re.MULTILINE
)
BETWEEN_MACHINES = ("wire.control", "wire.exchange", "wire.manifest", "wire.trust", "wire.signed", "wire.ticket")
REQUIRED = """
policy version, rollout, group, advantage, staleness, lag, lease, fencing token, deadline, receipt, admission,
swarm, segment, manifest, page, final page, seeder, origin, first holder, gateway, rarest first, endgame, hedge,
HEAD, generation, seq, floor, charter, delegation, roster, epoch, probation, digest, artifact, squash, snapshot,
delta, trainer, host, node, bootstrap
"""


def entries() -> dict[str, str]:
    """Term -> what it says; other names of a term are terms."""
    found = {}
    for match in ENTRY.finditer(GLOSSARY.read_text()):
        for term in [match["term"], *re.split(r", ", match["also"] or match["term"])]:
            found[term] = " ".join(match["text"].split())
    return found


def words(name: str) -> str:
    """PeerId -> peer id."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def test_every_line_of_the_list_is_an_entry_and_they_are_in_order() -> None:
    text = GLOSSARY.read_text()
    terms = [match["term"] for match in ENTRY.finditer(text)]
    assert len(terms) == len(re.findall(r"^- ", text, re.MULTILINE))
    assert terms == sorted(terms, key=lambda term: (term.lower(), term))


@pytest.mark.parametrize("term", entries())
def test_an_entry_is_short_and_says_where_its_term_is_fixed(term: str) -> None:
    text = entries()[term]
    assert len(text.split()) <= 50
    assert re.search(r"\]\([\w/.#-]+\)$", text) or text.startswith("short for ")


def test_every_type_of_identifier_and_number_is_a_term() -> None:
    names = [name for name, value in vars(types).items() if isinstance(value, types.NewType)]
    assert len(names) >= 12
    known = {term.lower() for term in entries()}
    assert [name for name in names if words(name) not in known] == []


def test_every_message_between_machines_is_named_in_an_entry() -> None:
    text = GLOSSARY.read_text()
    kinds = [
        kind for kind in wire_records().values() if kind.__module__.removeprefix("aurora_p2p.") in BETWEEN_MACHINES
    ]
    unnamed = [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in text]
    assert [name for name in unnamed if words(name) not in entries() and name not in WRAPPERS] == []


WRAPPERS = {"SignedLeaseRequest"}
"""Records that only carry another one over a stream."""


def test_every_word_that_the_protocol_sets_in_bold_is_a_term() -> None:
    bold = {
        match
        for path in PROTOCOL.glob("*.md")
        for match in re.findall(r"\*\*([A-Za-z][\w /-]*?)s?\*\*", path.read_text())
    }
    known = {term.lower() for term in entries()}
    messages = {name.lower() for name in wire_records()}
    headings = {"vectors", "vector"}
    assert [term for term in bold if not {term.lower(), f"{term.lower()}s"} & (known | messages | headings)] == []


def test_the_terms_of_the_design_are_all_there() -> None:
    assert [term for term in re.split(r",\s+", REQUIRED.strip()) if term not in entries()] == []
