from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import TicketError
from aurora_p2p.types import Generation, Seq, SwarmId
from aurora_p2p.wire.ticket import Ticket, parse_ticket
from aurora_p2p.wire.trust import Floor

SWARM = SwarmId(Identity(b"\x05" * 32).peer)
TICKET = Ticket(
    SWARM,
    bootstraps=(f"/ip4/127.0.0.1/tcp/4101/p2p/{SWARM}",),
    hosts=(f"/ip4/127.0.0.1/tcp/4100/p2p/{SWARM}",),
    floor=Floor(Generation(3), Seq(40)),
    local=("127.0.0.0/8",),
)


def test_a_ticket_survives_being_pasted() -> None:
    assert parse_ticket(f"  {TICKET}\n") == TICKET
    assert parse_ticket(SWARM) == Ticket(SWARM)


@given(position=st.integers(0, 10**6), letter=st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
def test_one_wrong_letter_is_noticed(position: int, letter: str) -> None:
    text = str(TICKET)
    position = 7 + position % (len(text) - 7)
    if text[position] == letter:
        return
    with pytest.raises(TicketError):
        parse_ticket(text[:position] + letter + text[position + 1 :])


@given(length=st.integers(0, 10**6))
def test_a_ticket_cut_short_is_noticed(length: int) -> None:
    text = str(TICKET)
    with pytest.raises(TicketError) as caught:
        parse_ticket(text[: length % len(text)])
    assert caught.value.hint


@given(text=st.text(max_size=200))
def test_any_text_is_a_ticket_or_a_ticket_error(text: str) -> None:
    with contextlib.suppress(TicketError):
        parse_ticket(text)


def test_a_swarm_id_with_a_typo_is_refused() -> None:
    with pytest.raises(TicketError, match="neither"):
        parse_ticket(SWARM[:-1] + "0")
