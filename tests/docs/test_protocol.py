"""The protocol's pages say what the code does: constants, options, domains, names, states, statuses."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
from msgspec import inspect as wire_inspect
from msgspec import structs

from aurora_p2p.crypto.sign import WIRE_VERSION
from aurora_p2p.lease.fleet import LeaseOptions
from aurora_p2p.net.tls import ALPN, Fault
from aurora_p2p.types import SwarmId
from aurora_p2p.wire import control
from aurora_p2p.wire.names import head_topic, namespace_of
from aurora_p2p.wire.signed import Signable
from aurora_p2p.wire.ticket import PREFIX
from tests.docs.wire_blocks import BLOCK, PROTOCOL, wire_records

PAGES = sorted(PROTOCOL.glob("*.md"))
CONSTANT = re.compile(r"^\| `((?:\w+\.)+)([A-Z][A-Z_]+)` \| (\S+) \|", re.MULTILINE)
OPTION = re.compile(r"^\| `(\w+)` \| ([\d.]+) \|", re.MULTILINE)
BCP_14 = {"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"}


def page(name: str) -> str:
    return (PROTOCOL / f"{name}.md").read_text()


def constants() -> list[tuple[str, str, str]]:
    return [match for path in PAGES for match in CONSTANT.findall(path.read_text())]


@pytest.mark.parametrize(("room", "name", "value"), constants(), ids=lambda part: str(part).strip("."))
def test_every_constant_that_a_page_names_has_the_value_it_says(room: str, name: str, value: str) -> None:
    package = room.strip(".")
    module = importlib.import_module(package if package.startswith("aurora_") else f"aurora_p2p.{package}")
    assert float(getattr(module, name)) == float(value)


def test_every_page_but_the_local_one_has_a_table_of_limits_and_all_name_their_vectors() -> None:
    without = [path.stem for path in PAGES if not CONSTANT.search(path.read_text())]
    assert without == []
    assert [path.stem for path in PAGES if "tests/vectors/messages.json" not in path.read_text()] == []


def test_the_options_of_a_run_are_those_of_the_code() -> None:
    rows = page("04-leases").partition("| option of a run")[2]
    options: dict[str, Any] = {name: getattr(LeaseOptions(), name) for name in LeaseOptions.__dataclass_fields__}
    assert {name: float(value) for name, value in OPTION.findall(rows)} == options


def test_the_key_words_are_defined_and_every_page_has_rules() -> None:
    assert "rfc2119" in page("00-overview")
    assert [word for word in BCP_14 if f'"{word}"' not in page("00-overview")] == []
    assert [path.stem for path in PAGES if not re.search(r"\b(MUST|SHOULD|MAY)\b", path.read_text())] == []
    others = {path.stem: re.findall(r"\b(?:SHALL|REQUIRED|OPTIONAL)\b", path.read_text()) for path in PAGES[1:]}
    assert {stem: found for stem, found in others.items() if found} == {}


def test_every_domain_of_a_signature_is_listed_where_signatures_are_explained() -> None:
    domains = {kind.domain for kind in wire_records().values() if issubclass(kind, Signable)} | {"bulk-auth"}
    text = page("01-trust").partition("\nDomains:")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z-]+)`", text)) == domains


def test_every_protocol_string_and_name_is_in_the_overview() -> None:
    swarm = SwarmId("SWARM")
    names = {namespace_of(swarm), head_topic(swarm), ALPN, f"{PREFIX}..."}
    names |= {value for name, value in vars(control).items() if name.endswith("_PROTOCOL")}
    text = page("00-overview").replace("<swarm id>", "SWARM")
    assert [name for name in names if f"`{name}`" not in text] == []
    assert f"version **{WIRE_VERSION}**" in text


def test_every_request_and_every_frame_has_a_row_that_says_who_sends_it_and_what_answers() -> None:
    requests = {kind.__name__ for kind in control.Request.__args__}  # type: ignore[attr-defined]
    answered = set(re.findall(r"^\| `(\w+)` \| .+ \| `\w+` \|$", page("04-leases"), re.MULTILINE))
    assert answered == requests
    frames = importlib.import_module("aurora_p2p.wire.exchange").ExchangeFrame.__args__
    table = page("03-exchange").partition("| frame | who sends it")[2].partition("\n\n")[0]
    assert [
        kind.__name__ for kind in frames if not re.search(rf"^\| [^|]*`{kind.__name__}`", table, re.MULTILINE)
    ] == []


def test_every_reason_why_a_connection_is_not_opened_is_named() -> None:
    assert [fault.value for fault in Fault if f"`{fault.value}`" not in page("03-exchange")] == []


def literals(kind: wire_inspect.Type) -> list[str]:
    """The fixed texts that a field may hold."""
    match kind:
        case wire_inspect.LiteralType():
            return [str(value) for value in kind.values if value]
        case wire_inspect.Metadata():
            return literals(kind.type)
        case wire_inspect.VarTupleType():
            return literals(kind.item_type)
        case wire_inspect.UnionType():
            return [text for one in kind.types for text in literals(one)]
    return []


def test_every_fixed_text_of_a_message_is_explained_beside_its_block() -> None:
    unexplained = []
    for path in PAGES:
        prose, inside = BLOCK.sub("", path.read_text()), "\n".join(BLOCK.findall(path.read_text()))
        for name, kind in wire_records().items():
            if re.search(rf"^{name}$|^{name}  ", inside, re.MULTILINE):
                texts = [
                    text for field in structs.fields(kind) for text in literals(wire_inspect.type_info(field.type))
                ]
                unexplained += [f"{path.stem}: {name}: {text}" for text in texts if f"`{text}`" not in prose]
    assert unexplained == []
