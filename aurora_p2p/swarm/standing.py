"""What a status shows of a linked peer: how far it is trusted, what holds it up. Nothing decides by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aurora_p2p.swarm.catalog import Holding
from aurora_p2p.swarm.link import Link


@dataclass(frozen=True, slots=True)
class Standing:
    is_host: bool
    weight: float
    """Share of its claimed upload that an origin trusts it with, 0 to 1."""
    strikes: int
    """Bans so far."""
    stalls: int
    """Requests that it left unanswered, over the artifacts known now."""
    snubbed: bool
    """It is silent: one request at a time until it delivers."""
    asked: int
    """Segments asked of it and not yet arrived."""
    queued: int
    """Segments that it waits for."""


def standing_of(link: Link, holdings: Iterable[Holding], strikes: int) -> Standing:
    return Standing(
        is_host=link.is_host,
        weight=link.weight,
        strikes=strikes,
        stalls=sum(holding.fetch.stalls.get(link.peer, 0) for holding in holdings),
        snubbed=link.snubbed,
        asked=len(link.requests),
        queued=len(link.queue) + len(link.sending),
    )
