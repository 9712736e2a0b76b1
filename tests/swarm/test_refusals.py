"""The closed list of refusals, and the document that names them."""

from __future__ import annotations

from pathlib import Path

from aurora_p2p.swarm.refusals import Refusal

TEXT = Path(__file__).parents[2].joinpath("docs/protocol/03-exchange.md").read_text()


def test_the_protocol_names_every_refusal_of_the_exchange() -> None:
    assert [reason.value for reason in Refusal if f"`{reason.value}`" not in TEXT] == []
